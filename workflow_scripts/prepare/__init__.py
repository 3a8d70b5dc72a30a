"""Everything a cell needs before a device is held: models, workloads, device facts, predictions."""
