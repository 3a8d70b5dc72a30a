"""Two results of one study compared."""
