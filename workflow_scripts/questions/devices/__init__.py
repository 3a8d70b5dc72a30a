"""The question of devices: its table and its section of the page."""
