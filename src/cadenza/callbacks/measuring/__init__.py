"""Callbacks that measure the model: metrics, results over whole sets, gradients, activations.

Begin with ``metrics.py``; ``per_sample.py`` holds the measures as plain functions.
"""
