"""Servers under load: latencies, saturation, promises and their check."""
