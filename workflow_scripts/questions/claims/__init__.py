"""Published claims, tested again with limits, formulas and the cells of a study."""
