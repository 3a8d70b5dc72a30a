"""How sure a number is: spread of starts, intervals, and tests of ratios."""
