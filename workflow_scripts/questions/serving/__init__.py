"""The question of serving: its table and its section of the page."""
