"""The question of energy: its section of the page."""
