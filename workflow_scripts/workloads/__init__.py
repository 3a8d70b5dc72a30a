"""Workloads: what a study specifies of its requests, and the requests themselves."""
