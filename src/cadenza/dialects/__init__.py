"""Callbacks that were written for Orca, AIToolbox, SuperGradients and fastai v1, as they are.

Change the import (``from cadenza.dialects.orca import Callback``), or change nothing and call ``install("orca")``
before the script imports the original. Each dialect is a table and a facade; ``adapter.py`` says how one is declared.
"""

from cadenza.dialects.imports import install, installed, run_script, uninstall
from cadenza.dialects.table import NAMES, dialect

__all__ = ["NAMES", "dialect", "install", "installed", "run_script", "uninstall"]
