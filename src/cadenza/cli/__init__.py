"""The command line: ``cadenza points``, ``cadenza check FILE``."""
