"""The question of claims: its table and its section of the page."""
