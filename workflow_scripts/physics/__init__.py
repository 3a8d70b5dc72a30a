"""Formulas of memory and speed, and the time of an engine's step."""
