"""The question of choose: its table and its section of the page."""
