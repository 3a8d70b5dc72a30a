"""The tables of a study: their columns, how they are made from cells, and how they are read."""
