"""Turn facts into tidy tables and verdicts."""
