"""Explanations of technical terms on the page."""

from collections.abc import Iterator

from workflow_scripts.present.blocks import Block, Definitions
from workflow_scripts.present.report import Report
from workflow_scripts.present.subject import Subject

ENTRIES = (
    (
        "KV cache",
        "For every token that a model has read or written, attention needs a key and a value vector in each layer. "
        "Keeping these vectors saves computing them again at every step. They stay in memory until the request ends.",
    ),
    (
        "Block (or page)",
        "A fixed number of token slots in the KV cache, the unit in which PagedAttention allocates memory. The block "
        "size is that number.",
    ),
    (
        "PagedAttention",
        "Attention over a KV cache whose blocks may lie anywhere in memory. Each sequence has a table of its blocks, "
        "like the page table of an operating system. A sequence takes a block when it needs one, so no memory is "
        "reserved for tokens that may never come.",
    ),
    (
        "Internal fragmentation",
        "Slots that are reserved for a sequence but hold no token. With blocks of B tokens, these are at most B - 1 "
        "slots in the last block of a sequence.",
    ),
    (
        "Prefill and decode",
        "Prefill reads the whole prompt at once and produces the first output token, with much arithmetic per byte "
        "read. Decode produces one further token per sequence and step. Every step reads all weights, so memory "
        "bandwidth is the limit until many sequences share the step.",
    ),
    (
        "Continuous batching",
        "New requests join and finished ones leave between any two steps. A static batch instead runs until its "
        "longest request is done.",
    ),
    (
        "max-num-seqs",
        "The maximum number of sequences that vLLM runs in one step. Whether it is reached depends on the number of "
        "requests and on free blocks.",
    ),
    (
        "Prefix caching",
        "Keeping the blocks of earlier prompts, so that a prompt with the same beginning is not computed again. It "
        "saves prefill, never decode.",
    ),
    (
        "Preemption",
        "A running sequence loses its blocks because none are free, and its tokens are computed again later.",
    ),
    (
        "Output and total tokens per second",
        "Output counts generated tokens; total counts prompt tokens too. The two are never compared with each other.",
    ),
    ("TTFT, TPOT", "Time to the first token of a request, and time per output token after the first."),
    (
        "MBU (model bandwidth utilization)",
        "The bytes that a step has to read (weights, and keys and values of all live tokens), divided by the "
        "step's time and by the device's memory bandwidth. Near 1, memory is the limit. Above 1, the "
        "measurement or the model of it is wrong.",
    ),
    (
        "MFU (model FLOP utilization)",
        "The same for arithmetic: the operations that the tokens need, divided by the time and by the device's peak "
        "rate.",
    ),
    (
        "Ceiling",
        "The highest rate that the device's bandwidth and arithmetic allow. A measurement above it is flagged as "
        "invalid and not compared.",
    ),
    (
        "95 % interval",
        "Of 100 such intervals, 95 contain the true value on the occasion that was measured. Verdicts follow from it. "
        "What another run measures may lie outside, because it has an error too.",
    ),
    (
        "Flat (equivalence test)",
        "Two one-sided tests show that a difference is smaller than a stated margin. A difference that is not "
        "significant may still exist, so such cases are called not decided.",
    ),
    (
        "Measured, predicted, published",
        "Measured: by this study. Predicted: computed from data on the model and the device. Published: as printed by "
        "others. No mark in a figure mixes them.",
    ),
)


def glossary(report: Report) -> Iterator[Block]:
    """The terms on the page."""
    yield Definitions(ENTRIES)


SUBJECT = Subject(id="glossary", title="Glossary", parts=[glossary])
