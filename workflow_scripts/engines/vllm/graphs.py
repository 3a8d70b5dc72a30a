"""The batch sizes for which vLLM captures CUDA graphs by default, which changed from version to version."""

_TWO_STEPS = (0, 11, 1)  # every 16th size beyond 256, and every 8th before
_COUNTS_DRAFTS = (0, 13)
_WITH_BUDGET = (0, 21)  # max_num_batched_tokens is captured, if small
_MORE_ON_BLACKWELL = (0, 28)
_WITH_DRAFTS = (0, 29)  # sizes of whole sequences with their drafted tokens (vllm-project/vllm#50488)
_WITH_SEQS = (0, 31)  # max_num_seqs is captured (vllm-project/vllm#57355)


def capture_sizes(
    version: tuple[int, ...], max_num_seqs: int, max_num_batched_tokens: int, *, blackwell: bool, drafted: int = 0
) -> list[int]:
    """Tokens of the steps that are captured (`VllmConfig._set_cudagraph_sizes`). `blackwell`: compute capability 10.
    `drafted`: tokens drafted per sequence and step.

    >>> capture_sizes((0, 32), 18, 2048, blackwell=False), capture_sizes((0, 30), 18, 2048, blackwell=False)
    ([1, 2, 4, 8, 16, 18, 24, 32], [1, 2, 4, 8, 16, 24, 32])
    """
    of_a_sequence = 1 + drafted if version >= _COUNTS_DRAFTS else 1
    ceiling = 1024 if blackwell and version >= _MORE_ON_BLACKWELL else 512
    largest = min(2 * max_num_seqs * of_a_sequence, ceiling)
    if version < _TWO_STEPS:
        return [size for size in (1, 2, 4, *range(8, largest + 1, 8)) if size <= max_num_batched_tokens]
    sizes = set(_ladder(largest))
    if version >= _WITH_BUDGET:
        sizes.add(max_num_batched_tokens)
    if of_a_sequence > 1 and version >= _WITH_DRAFTS:
        most = min(max_num_seqs, ceiling)
        sizes |= {of_a_sequence * count for count in (*_ladder(most), most)}
    elif version >= _WITH_SEQS:
        sizes.add(max_num_seqs)
    return sorted(size for size in sizes if size <= min(largest, max_num_batched_tokens))


def _ladder(largest: int) -> list[int]:
    return [size for size in (1, 2, 4, *range(8, 256, 8), *range(256, largest + 1, 16)) if size <= largest]


def decodes_as_one_graph(sizes: list[int], decoding: int) -> int:
    """The most tokens whose decode step is one graph: vLLM captures the whole model only up to `decoding` tokens, those
    of `max_num_seqs` sequences, and layers between attentions beyond.

    >>> decodes_as_one_graph([1, 2, 4, 8, 16, 24, 32], 18)
    16
    """
    return max((size for size in sizes if size <= decoding), default=0)
