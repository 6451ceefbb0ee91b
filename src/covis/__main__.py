"""`python -m covis`."""

from covis.cli import main

main()
