"""The format of a checkpoint on disk: tensors, JSON, checksums and the marker that commits it.

Begin with ``packing.py``.
"""
