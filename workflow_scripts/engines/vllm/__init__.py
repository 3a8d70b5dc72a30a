"""vLLM: its knobs, adapter, versions, log, and what is predicted of it."""
