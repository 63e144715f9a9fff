"""The parts of ``cadenza check``: names, classes, shapes and lives, each read from the text of a file alone."""
