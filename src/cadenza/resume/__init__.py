"""Collects and restores everything that shapes the future of a run, and turns signals into a save and an end.

It may import the engine and what stands above it, not the storage of checkpoints. Begin with ``collect.py``; what it
collects, ``restore.py`` restores.
"""
