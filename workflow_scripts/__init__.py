"""kvsweep: measure, parse, analyse and present how LLM inference engines use KV-cache memory."""

__version__ = "0.1.0"
