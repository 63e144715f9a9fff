"""Where the files of a checkpoint are stored: a disk or an object store, and what happens when it is down.

Begin with ``disk.py``; ``remote.py`` offers the same operations through fsspec.
"""
