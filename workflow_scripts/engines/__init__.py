"""Engines: their knobs, and what they take."""
