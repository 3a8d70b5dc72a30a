"""What the hardware allows: ceilings, ratios of devices, waiting for the host, predicted times."""
