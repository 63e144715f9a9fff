"""Rejects before a run begins what would be silently ignored in it, and suggests the name that was meant.

It may import the engine's neighbours (foundation, points, callback, main_callback, when), never the engine. Begin with
``checks.py``.
"""
