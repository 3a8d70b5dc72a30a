"""The question of waiting: its table and its section of the page."""
