"""Photos, tables, tracks and pose files as they are found → images with poses."""
