"""The catalogues: devices, models and servers that a study can name, and published data."""
