"""A study measured on a GPU host that is available for minutes only and has no network."""
