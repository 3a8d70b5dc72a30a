"""Engines: one description of each, with its knobs, and which block sizes they accept."""
