"""Spreads a model over processes: DDP and FSDP, and how gradients are averaged.

Begin with ``strategy.py``.
"""
