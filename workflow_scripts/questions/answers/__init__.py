"""The question of answers: its table and its section of the page."""
