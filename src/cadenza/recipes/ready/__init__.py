"""The recipes that come with the package, and the small models and data that they use. None needs a download."""
