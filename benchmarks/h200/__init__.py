"""A study measured on a GPU host that is lent for minutes and has no network."""
