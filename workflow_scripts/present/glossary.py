"""Explanations of technical terms on the page."""

from collections.abc import Iterator

from workflow_scripts.present.blocks import Block, Definitions
from workflow_scripts.present.report import Report

ENTRIES = (
    (
        "KV cache",
        "For every token that a model has read or written, attention needs a key and a value vector in each layer. "
        "Keeping them saves computing them again at every step; they stay in memory until the request ends.",
    ),
    (
        "Block (or page)",
        "A fixed number of token slots in the KV cache: the unit in which PagedAttention hands out memory. The block "
        "size is that number of tokens.",
    ),
    (
        "PagedAttention",
        "Attention over a KV cache that lies in blocks anywhere in memory, found through a table per sequence, as an "
        "operating system finds pages. A sequence takes a block when it needs one, so no memory is set aside for "
        "tokens that may never come.",
    ),
    (
        "Internal fragmentation",
        "Slots that are set aside for a sequence and hold no token. With blocks of B tokens it is at most B - 1 slots "
        "in the last block of a sequence.",
    ),
    (
        "Prefill and decode",
        "Prefill reads the whole prompt at once and gives the first output token: much arithmetic per byte read. "
        "Decode gives one further token per sequence and step: every step reads all weights, so memory bandwidth "
        "limits it until many sequences share the step.",
    ),
    (
        "Continuous batching",
        "New requests join and finished ones leave between any two steps. A static batch instead runs until its "
        "longest request is done.",
    ),
    (
        "max-num-seqs",
        "The most sequences that vLLM runs in one step. It is a limit: whether it is reached depends on the requests "
        "there are and on the blocks that are free.",
    ),
    (
        "Prefix caching",
        "Keeping the blocks of prompts that are done, so that a prompt with the same beginning need not be read again. "
        "It saves prefill, never decode.",
    ),
    (
        "Preemption",
        "A running sequence is thrown out because blocks ran out, and its tokens are computed again later.",
    ),
    (
        "Output and total tokens per second",
        "Output counts generated tokens, total counts prompt tokens too. They answer different questions and are never "
        "compared with each other.",
    ),
    ("TTFT, TPOT", "Time to the first token of a request, and time per output token after the first."),
    (
        "MBU (model bandwidth utilization)",
        "The bytes that a step has to read (weights, and keys and values of all live tokens), divided by the "
        "step's time and by the device's memory bandwidth. Near 1 the memory is the limit. Above 1 the number or the "
        "model of it is wrong.",
    ),
    (
        "MFU (model FLOP utilization)",
        "The same for arithmetic: the operations that the tokens need, divided by the time and by the device's peak "
        "rate.",
    ),
    (
        "Ceiling",
        "The highest rate that the device's bandwidth and arithmetic allow. A measurement above it is flagged as "
        "invalid and kept out of comparisons.",
    ),
    (
        "95 % interval",
        "If the whole measurement were repeated many times, 95 % of intervals made this way would hold the true value. "
        "Few repeats give wide intervals.",
    ),
    (
        "Flat (equivalence test)",
        "Two one-sided tests show that a difference is smaller than a stated margin. That a difference is not "
        "significant does not show that there is none, so such cases are called not decided.",
    ),
    (
        "Measured, predicted, published",
        "Measured: by this study. Predicted: computed from the model's and the device's data. Published: as others "
        "printed it. The three are never mixed in one mark.",
    ),
)


def glossary(report: Report) -> Iterator[Block]:
    """The terms on the page."""
    yield Definitions(ENTRIES)
