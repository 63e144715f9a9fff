"""Callbacks that measure what a training costs: time, memory, throughput, and each callback's share.

Begin with ``timer.py``.
"""
