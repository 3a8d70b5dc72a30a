"""The questions that a report answers: one folder for each, with its table and its section of the page."""
