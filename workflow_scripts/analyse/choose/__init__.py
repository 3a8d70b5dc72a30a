"""Which cells of a study are worth measuring: estimates of all cells, the study's questions, and the choice."""
