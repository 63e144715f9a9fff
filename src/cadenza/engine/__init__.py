"""Moves the loop: runs points, opens and closes passes, meets requests, begins and ends a run.

It may import foundation, points, clock, history, data and what a user writes (callback, main_callback, when); nothing
here knows a callback by name. Begin with ``passes.py`` (an epoch and a pass over a loader), then ``iteration.py``, and
``dispatch.py`` for how a point calls its callbacks.
"""
