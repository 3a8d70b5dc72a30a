"""KV cache: its predicted and measured capacity, and the share that held no token."""
