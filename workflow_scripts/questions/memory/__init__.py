"""The question of memory: its table and its section of the page."""
