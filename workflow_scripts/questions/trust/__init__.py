"""The question of trust: its table and its section of the page."""
