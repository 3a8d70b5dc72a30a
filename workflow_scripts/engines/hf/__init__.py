"""HuggingFace transformers: static and continuous batching."""
