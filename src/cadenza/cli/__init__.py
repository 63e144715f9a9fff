"""The command line: ``cadenza train RECIPE``, ``cadenza points`` and the others."""
