"""Two runs of a study compared, and what became worse in the later one."""
