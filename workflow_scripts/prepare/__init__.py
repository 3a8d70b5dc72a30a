"""Everything a cell needs before it occupies a device: models, workloads, device facts, predictions."""
