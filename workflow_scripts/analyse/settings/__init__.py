"""What settings and engines change, which setting is recommended, and which cells are measured again."""
