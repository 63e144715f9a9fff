"""Callbacks that watch a training and stop it.

Begin with ``early_stopping.py``.
"""
