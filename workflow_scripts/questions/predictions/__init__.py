"""The question of predictions: its table and its section of the page."""
