"""Benchmarks of the pipeline itself; each prints ratios of things measured in one run."""
