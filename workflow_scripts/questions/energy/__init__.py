"""The question of energy: its table and its section of the page."""
