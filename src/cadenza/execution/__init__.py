"""How the actions of an iteration are executed."""
