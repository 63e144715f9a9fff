"""One module for each command, or for a few that belong together.

At the top they import nothing but typer and ``cadenza.cli.terminal``: what they need to do their work is imported
inside functions, so that ``cadenza --help`` and the completion of the shell are quick.
"""
