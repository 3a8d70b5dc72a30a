"""Workloads: what a study says of its requests, and the requests themselves."""
