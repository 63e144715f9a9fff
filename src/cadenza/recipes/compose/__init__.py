"""Composes a recipe from files, defaults and overrides, with Hydra and a YAML reader of our own.

Begin with ``compose.py``.
"""
