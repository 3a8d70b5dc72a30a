"""Engines: one folder for each, with its knobs, adapter and predictions, and one entry in the registry."""
