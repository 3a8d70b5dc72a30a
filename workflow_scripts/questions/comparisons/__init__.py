"""Which pairs of cells differ in one thing, and what their comparison shows."""
