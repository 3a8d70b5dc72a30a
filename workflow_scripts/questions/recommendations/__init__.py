"""The question of recommendations: its table and its section of the page."""
