"""A study measured on a GPU host that is available only for minutes and has no network."""
