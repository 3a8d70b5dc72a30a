"""What a cell needs before it occupies a device: its model and its requests."""
