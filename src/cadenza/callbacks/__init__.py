"""Ready callbacks, one idea in one file."""
