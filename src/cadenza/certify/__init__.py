"""Proves that an interrupted and resumed training equals an uninterrupted one, bit by bit.

It may import the run and what stands above it. Begin with ``certify.py``; ``attempt.py`` runs one training in a process
of its own, and ``probes.py`` holds the callbacks that interrupt and record it.
"""
