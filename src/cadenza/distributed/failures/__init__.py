"""Ends all processes when one fails, so that none waits for ever.

Begin with ``failure_channel.py``.
"""
