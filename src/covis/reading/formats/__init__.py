"""One module for each foreign format."""
