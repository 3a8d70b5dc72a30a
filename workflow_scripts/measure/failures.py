"""Tell what an engine cannot do from what went wrong."""

# Words of vLLM and torch when a configuration cannot work on the device, whatever is tried again.
_INFEASIBLE = (
    "block size",
    "block_size",
    "No valid attention backend",
    "No available memory for the cache blocks",
    "KV cache is needed, which is larger than",
    "max_model_len",
    "max_num_batched_tokens",
    "out of memory",
    "not supported",
    "Bfloat16 is only supported",
)


def is_infeasible(error: BaseException) -> bool:
    """Whether an error at start-up says that the engine cannot run this configuration on this device."""
    text = f"{type(error).__name__}: {error}"
    return "OutOfMemoryError" in text or any(words in text for words in _INFEASIBLE)
