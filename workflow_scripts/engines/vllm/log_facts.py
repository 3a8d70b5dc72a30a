"""The facts that vLLM prints, one row per fact and era, and how to find them in a log.

In a pattern, a space stands for any run of white space, even an empty one: a terminal or an editor that wraps lines may
have removed or added some. The name of a group is the name of the fact; `{name:...}` writes such a group:
`count` is a whole number with or without thousands separators, `number` a decimal one, `size` a number with its unit,
`bytes` a size without a unit.

Rows of one fact are in order of preference: the first that occurs in a log gives the value. If it occurs more than
once (one line per rank, one line every ten seconds), `pick` decides which of the readings counts.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from workflow_scripts.logs.engine_log_text import Line, what_may_follow

FactValue = int | float | str


@dataclass(frozen=True)
class Reading:
    """The values from one occurrence of a pattern, with the process that printed them, the line number and, of several
    data-parallel engines, the number of the one it is about."""

    values: dict[str, FactValue]
    rank: str | None
    line: int
    engine: str | None = None


Pick = Callable[[Sequence[Reading], str], Reading]


def _smallest(readings: Sequence[Reading], fact: str) -> Reading:
    return min(readings, key=lambda reading: reading.values[fact])


def _over_engines(readings: Sequence[Reading], fact: str) -> Reading:
    """The sum over the engines of a data-parallel deployment, each with a cache of its own: of each, the smallest."""
    engines: dict[str | None, list[Reading]] = {}
    for reading in readings:
        engines.setdefault(reading.engine, []).append(reading)
    return _total([_smallest(of_one, fact) for of_one in engines.values()], fact)


def _largest(readings: Sequence[Reading], fact: str) -> Reading:
    return max(readings, key=lambda reading: reading.values[fact])


def _total(readings: Sequence[Reading], fact: str) -> Reading:
    total = sum(float(reading.values[fact]) for reading in readings)
    whole = all(isinstance(reading.values[fact], int) for reading in readings)
    return replace(readings[-1], values=readings[-1].values | {fact: int(total) if whole else round(total, 6)})


def _first(readings: Sequence[Reading], _: str) -> Reading:
    return readings[0]


def _last(readings: Sequence[Reading], _: str) -> Reading:
    return readings[-1]


@dataclass(frozen=True)
class FactRow:
    """One form of a fact that some versions print. If there are several readings, `pick` chooses the one that counts by
    the values of the fact `key`."""

    pattern: re.Pattern[str]
    facts: tuple[str, ...]
    key: str
    pick: Pick
    word: str  # that every text of the pattern has, empty for none: lines without it need no search

    @property
    def of_a_result(self) -> bool:
        """Whether a benchmark prints it at its end."""
        return self.key.endswith(("_per_s", "_ms_median", "_ms_p99", "failed_requests"))


ReadingsByRow = list[tuple[FactRow, list[Reading]]]


# A number begins only where no digit precedes it, so that a long run of digits is tried only once. A run with more
# digits than a counter can have is not a number.
_WHOLE_NUMBER = r"(?<![\d.,])(?P<{0}>-?\d{{1,15}}(?!\d)(?:,\d{{3}}){{0,5}}"
_GROUPS = {
    "count": _WHOLE_NUMBER + ")",
    "number": _WHOLE_NUMBER + r"(?:\.\d*)?)",
    "size": _WHOLE_NUMBER + r"(?:\.\d*)?)\s{{0,20}}(?P<{0}__unit>[KMGT]i?B|[Bb]ytes)",
    "bytes": _WHOLE_NUMBER + r")(?P<{0}__unit>)",
}


# Like every other run in a pattern it has an end, so that no text makes the search slow.
_SPACE = r"\s{0,80}"


def _row(pick: Pick, pattern: str, *, key: str | None = None) -> FactRow:
    def group(match: re.Match[str]) -> str:
        return _GROUPS[match[2]].format(match[1])

    spaced = pattern.replace(" $", r"\s*$").replace(" ", _SPACE)
    compiled = re.compile(re.sub(r"\{(\w+):(\w+)\}", group, spaced))
    facts = tuple(name for name in compiled.groupindex if "__" not in name)
    return FactRow(compiled, facts, key or facts[0], pick, _word(pattern))


def _word(pattern: str) -> str:
    """The longest word that is in every text of a pattern.

    >>> _word(r"(?:Setting|Forcing) the block_sizes? to {block_size:count}"), _word("(?:one|two)")
    ('block_size', '')
    """
    bare = re.sub(r"\\.|\[(?:\\.|[^\[\]\\])*\]|\{[^{}]*\}|\w[?*]", " ", pattern)
    while (outer := re.sub(r"\([^()]*\)", " ", bare)) != bare:
        bare = outer
    return max(re.findall(r"\w+", bare), key=len, default="")


# A log names many backends. The name of an attention backend contains an _ATTENTION_WORD and no word excluded by _WORD.
_WORD = r"(?!(?i:moe|mla prefill|prefill|decode|linear|sampling|encoder|vit|lora|ssu|gdn|kda|allreduce)\b)[\w-]{1,60}"
_ATTENTION_WORD = (
    r"(?=[\w-]{0,60}(?i:attn|attention|flash|xformers|sdpa|triton|mla|pallas|ipex|aiter|turboquant|openvino))"
    r"[\w-]{1,60}"
)
_ATTENTION = rf"(?P<attention_backend>(?:{_WORD}\s{{1,20}}){{0,3}}?{_ATTENTION_WORD}(?:\s{{1,20}}{_WORD}){{0,3}}?)"
# The labels of a metric are in alphabetical order, so the engine's number comes before the values.
_METRICS_INFO = r"cache_config_info\{(?=(?:[^{}]*?(?<!\w)engine=\"(?P<of__engine>\d{1,5})\")?)[^{}]*?"
_BLOCK_SIZE = r"(?<![\w-])block_size['\"]?\s*[=:]\s*['\"]?(?P<block_size>\d{1,15})"

# The comments name versions in which a form was seen; neighbouring versions print it too.
ROWS: tuple[FactRow, ...] = (
    # --- version -----------------------------------------------------------------------------------------------------
    _row(_first, r"LLM engine \(v(?P<engine_version>\d[^\s)]{0,80})\)"),  # 0.3 to 0.32
    _row(_first, r"vLLM API server version v?(?P<engine_version>\d\S{0,80})"),  # 0.10
    _row(_first, r"vLLM server version v?(?P<engine_version>\d[^\s,]{0,80})"),  # 0.32, on a terminal without colours
    _row(_first, r"[█▀▄]\s+version\s+v?(?P<engine_version>\d\S{0,80})"),  # 0.25 and 0.32, beside the logo
    _row(_first, r"vLLM [Vv]ersion ?: v?(?P<engine_version>\d\S{0,80})"),  # collect_env
    _row(_first, r"\"vllm_version\": \"(?P<engine_version>\d[^\s\"]{0,80})\""),  # its usage statistics
    _row(_first, r"^(?:\[pip3\] )?vllm(?:==|\s{2,})v?(?P<engine_version>\d\S{0,80})\s*$"),  # a list of packages
    # --- blocks ------------------------------------------------------------------------------------------------------
    # V0, and early V1 that printed no tokens. The first number is the device's: GPU, CUDA, cuda, rocm, hpu, TPU ...
    # If a letter follows the number, something was printed over its end.
    _row(_smallest, r"# [A-Za-z]+ blocks: {num_gpu_blocks:count}, # CPU blocks: {num_cpu_blocks:count}(?![A-Za-z])"),
    _row(_smallest, r"# (?!CPU\b)[A-Za-z]+ blocks: {num_gpu_blocks:count}(?![A-Za-z])"),
    _row(_smallest, r"# CPU blocks: {num_cpu_blocks:count}(?![A-Za-z])"),
    # The beginning of the line was cut off, with the first #.
    _row(
        _smallest,
        r"(?<![A-Za-z])[A-Za-z]{0,4} blocks: {num_gpu_blocks:count}, (?:# )?CPU blocks: {num_cpu_blocks:count}",
    ),
    _row(_smallest, r"^(?i:gpu|cuda|rocm|hpu|npu|tpu|xpu) blocks: {num_gpu_blocks:count} $"),
    # V1: 0.9 and 0.10, at level DEBUG 0.22 and 0.32
    _row(_over_engines, r"num_gpu_blocks is: {num_gpu_blocks:count}"),
    _row(_over_engines, _METRICS_INFO + r"num_gpu_blocks=\"{num_gpu_blocks:count}\""),  # /metrics
    _row(_over_engines, _METRICS_INFO + r"num_cpu_blocks=\"{num_cpu_blocks:count}\""),
    _row(_smallest, r"Usable num_blocks: {num_gpu_blocks:count}"),  # vllm-gaudi
    _row(_smallest, r"kv_cache_config\.num_blocks={num_gpu_blocks:count}"),  # TPU
    _row(_smallest, r"Init kv-cache \|.{0,200}?\bnum_blocks=\[{num_gpu_blocks:count}"),
    # --- block size --------------------------------------------------------------------------------------------------
    # The value that the engine set is preferred to the requested one.
    _row(_last, r"(?:Setting|Forcing) (?:kv cache|attention) block size to {block_size:count}"),  # V1
    _row(_last, r"Using cache_config\.block_size: {block_size:count} instead of"),  # TPU
    _row(_last, r"_attn_shape=\(num_blocks, \({block_size:count},"),  # TPU
    _row(_first, r"cache_config_info\{[^{}]*?(?<!\w)block_size=\"{block_size:count}\""),  # /metrics
    _row(_first, r"^(?>.*?(?:args|Namespace|EngineArgs|CacheConfig|LLM|model config)\b).*?" + _BLOCK_SIZE),
    _row(_first, r"^(?>.*?\"vllm_version\": ).*?" + _BLOCK_SIZE),
    _row(_first, r"(?<![\w-])block_size={block_size:count}, enable_prefix_caching=(?:True|False),"),  # cut off before
    _row(_first, r"--block[-_]size[=\s'\",]+{block_size:count}(?! requires)"),  # a command line, echoed
    # --- KV cache ----------------------------------------------------------------------------------------------------
    _row(_over_engines, r"KV cache size: {kv_cache_tokens:count} tokens"),  # V1: 0.8 to 0.32
    _row(_smallest, r"max_total_num_tokens={kv_cache_tokens:count}"),  # SGLang
    _row(_smallest, r"KV Cache is allocated\..{0,60}? #tokens: {kv_cache_tokens:count}"),  # SGLang, 0.5
    _row(_over_engines, _METRICS_INFO + r"kv_cache_size_tokens=\"{kv_cache_tokens:count}\""),  # 0.25
    _row(_smallest, r"tokens that can be stored in KV cache \({kv_cache_tokens:count}\)"),  # V0, when it refuses
    _row(
        _over_engines,
        r"oncurrency for {max_concurrency_tokens_per_request:count} tokens per request: "
        r"{max_concurrency:number}x",  # V0: 0.6.4 to 0.8, V1: 0.7 to 0.32
        key="max_concurrency",
    ),
    _row(_over_engines, _METRICS_INFO + r"kv_cache_max_concurrency=\"{max_concurrency:number}\""),  # 0.25
    _row(_smallest, r"Available KV cache memory: {available_kv_cache_gib:size}"),  # V1: 0.10 to 0.32
    _row(_smallest, r"reserved for KV Cache is {available_kv_cache_gib:size}"),  # V0: 0.6.6 to 0.8
    _row(_smallest, r"kv_cache_size={available_kv_cache_gib:size}"),  # V0: 0.6.3
    _row(_smallest, r"available_kv_cache_memory {available_kv_cache_gib:size}"),  # V0: 0.6.5, a line per term
    _row(_smallest, r"reserved {available_kv_cache_gib:size} memory for KV Cache as specified"),  # V1: 0.32
    _row(_smallest, r"(?:Explicitly|Auto) set \({available_kv_cache_gib:number}/[\d.]{1,20}\) GiB for KV cache"),  # CPU
    _row(_smallest, r"{available_kv_cache_gib:size} reserved for (?:usable )?KV cache(?! dummy)"),  # Gaudi
    _row(_smallest, r"Initializing cache engine took {available_kv_cache_gib:size}"),  # Gaudi
    _row(_smallest, r"Available memory: {available_kv_cache_gib:bytes}, total memory: \d"),  # Ascend
    _row(_smallest, r"Current (?i:kv) cache memory(?: in use is|:) {available_kv_cache_gib:size}"),  # V1, Ascend
    _row(_smallest, r"Memory statistics \|.{0,300}?\btotal_hbm_avail_gb={available_kv_cache_gib:size}"),  # TPU
    # V1, when it refuses
    _row(_smallest, r"than the available KV cache memory \({available_kv_cache_gib:size}\)"),
    _row(_smallest, r"in available KV cache memory \({available_kv_cache_gib:size}\)"),  # V1, auto-fit
    # --- the rest of the memory --------------------------------------------------------------------------------------
    # V0 wrote GB for numbers that it had divided by 2**30.
    _row(_largest, r"Model loading took {model_weights_gib:size}"),  # 0.8 to 0.32
    # until 0.7; Ascend, Gaudi
    _row(_largest, r"Loading model weights took (?:in total )?{model_weights_gib:size}"),
    _row(_largest, r"Load weight end\..{0,300}? mem usage={model_weights_gib:size}"),  # SGLang
    _row(_largest, r"Memory statistics \|.{0,300}?\btotal_hbm_used_gb={model_weights_gib:size}"),  # TPU
    _row(_largest, r"Pre-loading model weights on \S{1,100} took {model_weights_gib:size}"),  # Gaudi
    _row(_largest, r"[Mm]odel weights take {model_weights_gib:size}"),  # V0: 0.6.6 to 0.8
    _row(_largest, r"weights memory: {model_weights_gib:size}"),  # V1, the whole of the profile
    _row(_largest, r"Actual usage(?: is|:) {model_weights_gib:size} for weights?\b"),  # V1: 0.22, Ascend
    _row(_largest, r"PyTorch activation peak memory (?:takes )?{peak_activation_gib:size}"),  # V0: 0.6.5 to 0.8
    _row(_largest, r"{peak_activation_gib:size} for peak activation"),  # V1: at level DEBUG 0.22, then INFO
    _row(_largest, r"torch peak memory increase: {peak_activation_gib:size}"),  # V1, the whole of the profile
    _row(_largest, r"Graph capturing finished in [\d.]{1,20} secs?, took {cuda_graph_gib:size}"),  # 0.7 to 0.32
    _row(_largest, r"CUDA graph pool memory: {cuda_graph_gib:size} \(actual\)"),  # V1: 0.22 and 0.32
    _row(_largest, r"{cuda_graph_gib:size} for (?:CUDAGraph|NPU graph) memory"),  # V1, Ascend
    # --- CUDA graphs, from the dump of the configuration: 0.25 and 0.32 -----------------------------------------------
    _row(_first, r"'max_cudagraph_capture_size': {max_cudagraph_capture_size:count}"),
    _row(_first, r"'cudagraph_mode': <CUDAGraphMode\.(?P<cudagraph_mode>\w{1,60})"),
    # --- torch.compile: who loaded some graphs and compiled others compiled ------------------------------------------
    _row(_first, r"(?P<graphs_from_cache>Compiling a graph|saved AOT compiled function)"),  # 0.8 to 0.25, 0.25 and 0.32
    _row(_first, r"(?P<graphs_from_cache>Directly load) (?:AOT compilation|the compiled graph)"),
    # 0.8 to 0.32
    _row(_largest, r"torch\.compile (?:and\s[\w\s/]{1,100}together )?t(?:akes|ook) {compile_s:number} s"),
    # --- attention ---------------------------------------------------------------------------------------------------
    _row(
        _first,
        r"Using (?:_?(?:AttentionBackendEnum|Backend)\.)?"
        + _ATTENTION
        + r"\s(?:attention )?backend(?= on V1| on XPU| with (?:HND|NHD) KV| out of| \(selected|\.?\s*$|\. )",
    ),
    _row(_first, r"Forcing (?P<attention_backend>[A-Z][A-Z\d_]{1,60}) backend\b"),
    _row(
        _first, r"precluded higher-priority backend\(s\)[\w,\s]{0,300}\. Using (?P<attention_backend>\w{1,60}) instead"
    ),
    _row(_first, r"Overriding with (?P<attention_backend>\w{1,60}) out of potential backends"),  # ROCm
    _row(_first, r"KV cache layout for (?P<attention_backend>\w{1,60}) backend"),  # 0.25
    # --- while serving -----------------------------------------------------------------------------------------------
    # The other rates in these lines are `External prefix cache hit rate` and `MM cache hit rate`.
    _row(_last, r"Prefix cache hit rate: (?:GPU: )?{prefix_cache_hit_rate_pct:number}%"),
    _row(_last, r"num_preemptions(?:_total)?\{[^{}]*\} {preemptions:count}"),  # /metrics
    # V0: since the engine's start
    _row(_largest, r"total_(?:num_)?cumulative_preemption(?:_cnt)?={preemptions:count}"),
    _row(_total, r"(?<!_)Preemptions(?: detected)?: {preemptions:count}"),  # V1: since the line before
    # --- benchmarks --------------------------------------------------------------------------------------------------
    # `vllm bench serve` and benchmark_serving.py; 0.3 and 0.4.0 had the unit behind the number.
    _row(_last, r"Request throughput(?: \(req/s\) [:|]|:) {requests_per_s:number}"),
    _row(_last, r"Total [Tt]oken throughput(?: \(tok/s\) [:|]|:) {total_tokens_per_s:number}"),
    _row(_last, r"Output token throughput(?: \(tok/s\) [:|]|:) {output_tokens_per_s:number}"),
    *(
        _row(_last, rf"{words} {name}(?: \(ms\):|:) {{{fact}_ms_{statistic}:number}}")
        for name, fact in {"TTFT": "ttft", "TPOT": "tpot", "ITL": "itl", "E2E(?:L| Latency)": "e2e"}.items()
        for words, statistic in {"Median": "median", r"P99(?:\.0+)?": "p99"}.items()
    ),
    _row(_last, r"Failed requests: (?!0\b){failed_requests:count}"),
    # `vllm bench throughput`; if it prints a single rate of tokens, that counts prompt and output tokens together.
    # The log may end within the line.
    _row(_last, r"Throughput: {requests_per_s:number} requests/s"),
    _row(_last, r"Throughput: [\d.]{1,20} requests/s, {total_tokens_per_s:number} (?:total\b|tokens/s)"),
    _row(_last, r"Throughput: [\d.]{1,20} requests/s,[^,]{0,100}tokens/s, {output_tokens_per_s:number} output\b"),
    _row(_last, r"HF throughput: {output_tokens_per_s:number} tok"),  # scripts with generate()
    # The result files of both, also printed into logs.
    _row(_last, r"\"(?:request_throughput|requests_per_second)\": {requests_per_s:number}"),
    _row(_last, r"\"(?:total_token_throughput|tokens_per_second)\": {total_tokens_per_s:number}"),
    _row(_last, r"\"output_throughput\": {output_tokens_per_s:number}"),
    *(
        _row(_last, rf"\"{statistic}_{name}_ms\": {{{name}_ms_{statistic}:number}}")
        for name in ("ttft", "tpot", "itl")
        for statistic in ("median", "p99")
    ),
)

# More is no count of anything, and no table holds it.
_MOST_COUNT = 2**53

# A line with nothing else continues a number at the end of the line before.
_REST_OF_A_NUMBER = re.compile(r"[,.]?\d[\d,.]*\s*")

# GB, MB and so on are read as GiB, MiB: vLLM divides by powers of 1024.
_GIB_PER_UNIT = {"B": 2.0**-30, "K": 2.0**-20, "M": 2.0**-10, "G": 1.0, "T": 2.0**10}


def find_readings(lines: Sequence[Line]) -> ReadingsByRow:
    """Collect the readings of each row: rows in the order of `ROWS`, readings in the order of the log."""
    by_row: ReadingsByRow = [(row, []) for row in ROWS]
    for index, line in enumerate(lines):
        rest = what_may_follow(lines, index)
        whole = line.text + "".join(rest)
        for row, readings in by_row:
            for match in _matches(row, line.text, rest) if row.word in whole else ():
                values = {fact: _value(fact, match) for fact in row.facts}
                if all(isinstance(value, str) or abs(value) < _MOST_COUNT for value in values.values()):
                    at = line.number_at(match.start(row.facts[0]))
                    readings.append(Reading(values, line.rank, at, _engine_of(match, line)))
    return [(row, readings) for row, readings in by_row if readings]


def _engine_of(match: re.Match[str], line: Line) -> str | None:
    process = re.search(r"\bEngineCore_(?:DP)?(\d{1,5})\b", line.rank or "")  # without DP up to 0.10
    return match.groupdict().get("of__engine") or (process[1] if process else None)


def _matches(row: FactRow, text: str, rest: Sequence[str]) -> Iterator[re.Match[str]]:
    within = list(row.pattern.finditer(text))
    goes_on = re.search(r"[\d,.]$", text) and rest and _REST_OF_A_NUMBER.fullmatch(rest[0])
    if within and goes_on and within[-1].end() == len(text):
        within.pop()
    yield from within
    if rest and not within:
        across = row.pattern.finditer(text + "".join(rest))
        yield from (match for match in across if match.start() < len(text) < match.end())


_TEXTS = ("attention_backend", "cudagraph_mode", "engine_version")
_WHOLE = ("_blocks", "_size", "_tokens", "_tokens_per_request", "preemptions", "_requests")


def _value(fact: str, match: re.Match[str]) -> FactValue:
    text = match[fact]
    if fact in _TEXTS:
        return " ".join(text.split())
    if fact == "graphs_from_cache":
        return text.startswith("Directly")
    number = text.replace(",", "")
    if (unit := match.groupdict().get(f"{fact}__unit")) is not None:
        return float(number) * _GIB_PER_UNIT[(unit or "B")[0].upper()]
    return int(number) if fact.endswith(_WHOLE) else float(number)
