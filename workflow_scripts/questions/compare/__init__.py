"""The question of compare: its table and its section of the page."""
