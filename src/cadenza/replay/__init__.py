"""Records a stretch of training, runs it again, and names the module where the first non-finite value appeared.

It may import the run and what stands above it. Begin with ``replay.py``; ``tape.py`` is the recording and
``find_nonfinite.py`` the search.
"""
