"""A study: its file, its grid of cells, their definitions, places and outcomes."""
