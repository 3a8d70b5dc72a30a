"""The question of cells: its table and its section of the page."""
