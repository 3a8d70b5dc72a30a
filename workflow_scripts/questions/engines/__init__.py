"""The question of engines: its table and its section of the page."""
