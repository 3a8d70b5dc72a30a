"""The text of engine logs, and what it says of how a start ended."""
