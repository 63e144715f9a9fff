"""The folder of recipes: give it to Hydra as ``config_path``, or as ``pkg://super_gradients.recipes``."""

from pathlib import Path

FOLDER = Path(__file__).parent
"""Where the recipes lie."""

__all__ = ["FOLDER"]
__resources__ = True
"""Whoever finds this package by another name finds its files as well."""
