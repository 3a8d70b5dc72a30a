"""The device that work runs on: what it is, what it can do, what else uses it."""
