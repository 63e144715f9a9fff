"""Executes steps from a recording: a CUDA graph (``cuda_graph.py``) or compiled code (``compiled.py``).

Begin with ``region.py``, which decides which steps are alike and which are recorded; ``why_not.py`` says in words why a
step is not.
"""
