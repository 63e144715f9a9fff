"""Makes all processes decide the same at the same step, with uneven numbers of batches too.

Begin with ``process_group.py``, which is what the engine sees of the other processes.
"""
