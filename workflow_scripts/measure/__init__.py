"""Run one engine on one cell and write raw evidence; no statistics are computed here."""
