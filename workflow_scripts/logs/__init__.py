"""The text of engine logs, and what it says about how a start ended."""
