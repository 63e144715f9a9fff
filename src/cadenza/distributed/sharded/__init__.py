"""Stores and reads checkpoints in parts, one for each process.

Begin with ``sharding.py``.
"""
