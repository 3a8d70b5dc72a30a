"""A server of an engine, and the client that sends requests to it."""
