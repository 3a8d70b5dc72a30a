"""The question of knobs: its table and its section of the page."""
