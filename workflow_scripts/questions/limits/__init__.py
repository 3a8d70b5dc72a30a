"""The question of limits: its table and its section of the page."""
