"""Callbacks that change the training: its gradients, weights, precision or samples.

They may import the run's public side and foundation. Begin with ``clip.py``, the shortest.
"""
