"""Cells on a cluster: batches, attempts and what jobs request."""
