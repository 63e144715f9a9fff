"""Knows nothing of runs: nested containers, random numbers, files, checks of arguments, warnings, locks.

It imports nothing of Cadenza, and every room may import it. Each file can be read alone.
"""
