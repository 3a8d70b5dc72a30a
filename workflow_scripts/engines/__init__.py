"""Engines: their knobs, and which block sizes they accept."""
