"""Turn raw evidence into typed facts, each with where it was read."""
