"""Turn raw evidence into typed facts, each with the place where it was read."""
