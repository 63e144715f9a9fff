"""One module for each habit. At the top they import nothing but typer, so that ``cadenza --help`` is quick."""
