"""Benchmarks of the pipeline itself. Each compares values that are measured in one run."""
