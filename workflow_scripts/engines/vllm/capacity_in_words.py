"""A predicted capacity for people: the memory of each device as a sum, and what fits into its last term."""

import math
from collections.abc import Iterator, Mapping, Sequence

from rich.table import Table

from workflow_scripts.common.terminal import Terminal
from workflow_scripts.common.wording import listed, plural
from workflow_scripts.engines.capacity import Term
from workflow_scripts.engines.vllm.memory import GIB, MIB, BatchLimits, EngineSettings

_PARTS = {
    "weights": "weights",
    "activation": "peak of activations",
    "cuda_graphs": "CUDA graphs",
    "other": "outside of torch",
    "available_kv_cache": "KV cache",
}
# A difference below this is of rounding.
_NOTHING_BYTES = MIB
Ranks = Sequence[Mapping[str, Term]]


def print_capacity(
    title: str,
    ranks: Ranks,
    limiting: Mapping[str, Term],
    settings: EngineSettings,
    batch: BatchLimits,
    fits: Mapping[str, int],
) -> None:
    """Print the terms of the pipeline ranks, those of the limiting one in words, and settings with which they fit."""
    terminal = Terminal()
    terminal.print(title)
    terminal.print()
    terminal.print(_memory(ranks, limiting, settings))
    terminal.print()
    for line in (*_what_fits(limiting, settings, batch), *_what_would_fit(limiting, fits)):
        terminal.print(line)


def _memory(ranks: Ranks, limiting: Mapping[str, Term], settings: EngineSettings) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("memory (GiB)")
    for terms in ranks:
        index = f"{terms['pipeline_rank'].value:.0f}"
        table.add_column("each device" if len(ranks) == 1 else f"rank {index}", justify="right", no_wrap=True)
    table.add_column("how" if len(ranks) == 1 else f"how, on rank {limiting['pipeline_rank'].value:.0f}")
    for name, words in _PARTS.items():
        if name in limiting:
            sign = "  " if name == "weights" or "weights" not in limiting else "+ "
            table.add_row(sign + words, *(_gib(terms[name].value) for terms in ranks), limiting[name].how)
    if "budget" in limiting:
        rest = [terms["budget"].value - sum(terms[name].value for name in _PARTS) for terms in ranks]
        if max(map(abs, rest)) > _NOTHING_BYTES:
            table.add_row("+ difference", *map(_gib, rest), "of the log from the predicted terms")
        share = f"{settings.gpu_memory_utilization:g} of {_gib(limiting['device_memory'].value)}"
        table.add_row("= usable", *(_gib(terms["budget"].value) for terms in ranks), share)
    table.add_row()
    per_token = (f"{terms['bytes_per_token'].value:,.0f} B" for terms in ranks)
    table.add_row("KV of a token", *per_token, limiting["bytes_per_token"].how)
    for name, words in (("bytes_per_request", "KV of a request"), ("bytes_per_batch", "KV of the batch")):
        if name in limiting:
            blocks = limiting[name].value / limiting["bytes_per_block"].value
            sizes = (f"{_gib(blocks * terms['bytes_per_block'].value)} GiB" for terms in ranks)
            table.add_row(words, *sizes, limiting[name].how)
    sizes = (f"{terms['bytes_per_block'].value / MIB:.3g} MiB" for terms in ranks)
    table.add_row("a KV block", *sizes, limiting["bytes_per_block"].how)
    table.add_row("KV blocks", *(f"{terms['num_blocks'].value:,.0f}" for terms in ranks), limiting["num_blocks"].how)
    return table


def _gib(size: float) -> str:
    return f"{size / GIB:,.2f}"


def _what_fits(limiting: Mapping[str, Term], settings: EngineSettings, batch: BatchLimits) -> Iterator[str]:
    blocks, tokens = int(limiting["num_blocks"].value), int(limiting["kv_cache_tokens"].value)
    of_tokens = plural(int(limiting["tokens_per_block"].value), "token")
    yield f"KV cache: {plural(blocks, 'block')} of {of_tokens}, {plural(tokens, 'token')} in all."
    length, concurrency = plural(batch.max_model_len, "token"), limiting["max_concurrency"].value
    if limiting["feasible"].value:
        count = plural(math.floor(concurrency), "request")
        yield f"{count} of {length} fit at once (maximum concurrency {concurrency:.2f})."
    elif (lacking := -limiting["available_kv_cache"].value) > 0:
        yield f"It does not fit: each device lacks {_gib(lacking)} GiB for all but the KV cache."
    elif concurrency > 1:
        yield f"vLLM refuses to start: {limiting['feasible'].how}."
    else:
        yield f"It does not fit: a request of {length} needs more blocks (maximum concurrency {concurrency:.2f})."


def _what_would_fit(limiting: Mapping[str, Term], fits: Mapping[str, int]) -> Iterator[str]:
    if not limiting["feasible"].value:
        options = [f"--{name.replace('_', '-')} {value}" for name, value in fits.items()]
        if options or "log: " not in limiting["available_kv_cache"].how:
            none = "No number of such devices makes it fit."
            yield f"It would fit with {listed(options, 'or')}." if options else none
