"""The question of environments: its table and its section of the page."""
