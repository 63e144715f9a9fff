"""Callbacks that show a training: progress, plots, pictures, notifications, exported models.

Begin with ``progress.py``.
"""
