"""Whole logs, and the changes that log collectors and terminals make to them."""

import json
import os
import re
import resource
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from workflow_scripts.catalog.gpus_and_models import get_gpu, get_model
from workflow_scripts.common.faults import InputError
from workflow_scripts.engines.vllm.knobs import VllmKnobs
from workflow_scripts.engines.vllm.predictions import vllm_steps
from workflow_scripts.logs.engine_log_text import MOST_LINE, read_lines, read_log_text
from workflow_scripts.parse.engine_log import EngineLogFacts, parse_engine_log, read_engine_log
from workflow_scripts.physics.model_facts import read_model_facts
from workflow_scripts.study.outcome import Outcome

LOGS = Path(__file__).parents[2] / "fixtures" / "logs"
EXPECTED = json.loads((LOGS / "expected.json").read_text())
UNMODELLED = ("read_from", "derived", "starts")


def text_of(name: str) -> str:
    """A log as it is, carriage returns and all."""
    return (LOGS / name).read_bytes().decode()


def stated(facts: EngineLogFacts) -> dict:
    """What the log states, without where."""
    return {
        name: value
        for name, value in facts.model_dump(mode="json").items()
        if value is not None and name not in UNMODELLED
    }


@pytest.mark.parametrize("name", sorted(path.name for path in LOGS.glob("*.log")))
def test_reads_what_a_person_reads(name):
    facts = read_engine_log(LOGS / name)
    expected = dict(EXPECTED[name])
    assert (facts.derived, facts.starts) == (expected.pop("derived", {}), 1)
    assert stated(facts) == expected


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_says_where_each_number_stands(name):
    facts = read_engine_log(LOGS / name)
    lines = text_of(name).split("\n")
    for fact, number in facts.read_from.items():
        value = getattr(facts, fact)
        if fact not in ("status", "error", "preemptions"):
            printed = re.sub(r"(?<=\d),(?=\d{3})", "", lines[number - 1])
            assert str(value).removesuffix(".0") in printed, (fact, number)


def test_numbers_that_are_derived_and_what_is_none():
    facts = read_engine_log(LOGS / "template-0.2.7-serve.log")
    assert facts.kv_cache_tokens == facts.num_gpu_blocks * facts.block_size
    assert "kv_cache_tokens" not in facts.read_from
    log = "GPU KV cache size: 2,640,128 tokens\nMaximum concurrency for 16,384 tokens per request: {}x\n"
    blocks = "Engine 000: vllm cache_config_info with initialization after num_gpu_blocks is: 165008\n"
    assert parse_engine_log(log.format(161.14) + blocks).derived == {"block_size": 16}
    assert parse_engine_log(log.format(284.25) + blocks).derived == {}
    for size in ("decode_context_parallel_size", "pipeline_parallel_size"):
        assert parse_engine_log(log.format(161.14) + blocks + f"{size}=2").derived == {}
    assert parse_engine_log(log.format(161.14) + blocks.replace("165008", "165009")).derived == {}
    # Digits without end are no number.
    assert parse_engine_log("# GPU blocks: " + "9" * 5000 + "\n# CPU blocks: 5").num_gpu_blocks is None


PREFIXES = (
    *("", "2024-05-30T16:23:28.123456789Z ", "2024-05-30T16:23:28.123456789Z stderr F ", "vllm-1  | ", "0: "),
    *("May 30 16:23:28 node1 vllm[4242]: ", "[pod/vllm-0/server] ", "(ServeReplica pid=7, ip=10.0.0.7) "),
)


def wrapped(text: str, width: int) -> str:
    """Cut lines as a terminal does, each piece that a carriage return begins anew."""
    pieces = re.split(r"(\r?\n|\r)", text)
    return "".join("\n".join(piece[i : i + width] for i in range(0, len(piece) or 1, width)) for piece in pieces)


def coloured(text: str, places: list[int]) -> str:
    """Put colour codes into each line."""
    codes = ["\x1b[1;36m", "\x1b[0;0m", "\x1b[32m", "\x1b[0m"]
    lines = []
    for line in text.split("\n"):
        for code, at in zip(codes, sorted((place % (len(line) + 1) for place in places), reverse=True), strict=False):
            line = line[:at] + code + line[at:]
        lines.append(line)
    return "\n".join(lines)


@pytest.mark.parametrize("name", sorted(EXPECTED))
@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    prefix=st.sampled_from(PREFIXES),
    width=st.integers(80, 400) | st.none(),
    places=st.lists(st.integers(0, 10**6), max_size=4),
    newline=st.sampled_from(["\n", "\r\n"]),
)
def test_collectors_and_terminals_do_no_harm(name, prefix, width, places, newline):
    text = text_of(name)
    plain = stated(parse_engine_log(text))
    changed = "\n".join(prefix + line for line in text.split("\n"))
    if width is not None:
        changed = wrapped(changed, width)
    changed = coloured(changed, places).replace("\n", newline)
    facts = stated(parse_engine_log(changed))
    # A terminal's cut shows in a log of several long lines; the end of a message of one long line may be lost, and with
    # it the cause that it names.
    if facts.get("error") != plain.get("error"):
        assert facts.pop("error", "")[:60] == plain.pop("error", "")[:60]
        assert facts.pop("status") in (plain.pop("status"), "error")
    assert facts == plain


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_a_bare_bar_before_each_line_does_no_harm(name):
    plain = parse_engine_log(text_of(name))
    for bar in ("|", "||", ">", "\u258e", "  \u2502"):
        assert parse_engine_log(re.sub("^", bar, text_of(name), flags=re.M)) == plain


@settings(max_examples=60)
@given(name=st.sampled_from(sorted(EXPECTED)), share=st.floats(0, 1))
def test_a_log_that_breaks_off_says_less_but_nothing_else(name, share):
    """A cut may hide a fact or, between ranks, show the other rank's; the cut line itself states nothing new."""
    text = text_of(name)
    lines = text[: int(len(text) * share)].split("\n")[:-1]
    whole, part = stated(parse_engine_log(text)), stated(parse_engine_log("\n".join(lines)))
    differ_by_rank_or_time = {
        *("status", "error", "prefix_cache_hit_rate_pct", "preemptions", "kv_cache_tokens", "max_concurrency"),
        *("available_kv_cache_gib", "model_weights_gib", "cuda_graph_gib", "block_size"),
    }
    assert all(whole.get(fact) == value for fact, value in part.items() if fact not in differ_by_rank_or_time)


WITH_A_START = [name for name in sorted(EXPECTED) if re.search("Initializing an? .*LLM engine", text_of(name))]


@settings(max_examples=20)
@given(names=st.lists(st.sampled_from(WITH_A_START), min_size=2, max_size=3), between=st.sampled_from(["", "== run\n"]))
def test_of_several_starts_in_a_file_the_last_one_counts(names, between):
    """A container that restarts, `tee -a`: no fact is a mixture, and each stands in the lines of the last start."""
    texts = [text_of(name).rstrip("\n") + f"\n{between}" for name in names]
    last, whole = parse_engine_log(texts[-1]), parse_engine_log("".join(texts))
    count = sum(parse_engine_log(text).starts for text in texts)
    assert {**stated(whole), "results": whole.starts} == {**stated(last), "results": count}
    assert min(whole.read_from.values()) > sum(text.count("\n") for text in texts[:-1])


COMES_UP = [name for name in WITH_A_START if re.search(r"\(EngineCore.* init engine \(profile", text_of(name))]


@settings(max_examples=10)
@given(name=st.sampled_from(COMES_UP), pods=st.integers(2, 3), seed=st.integers(0, 10**6))
def test_of_pods_that_print_at_once_one_is_read_or_none(name, pods, seed):
    """Only their names tell pods of one image apart; without them no fact is that of another pod."""
    took = [re.sub(r"(init engine .* took )", rf"\g<1>{1 + pod}", text_of(name)) for pod in range(pods)]
    logs = [re.sub(r"(?<=KV cache size: )[\d,]+", f"{1 + n},600", text).splitlines() for n, text in enumerate(took)]
    turns = [pod for pod, lines in enumerate(logs) for _ in lines]
    Random(seed).shuffle(turns)
    lines = [iter(log) for log in logs]
    woven = [(pod, next(lines[pod])) for pod in turns]
    last = parse_engine_log("\n".join(logs[[*dict.fromkeys(turns)][-1]]))
    for prefix in ("[pod/a-{}/b] ", "vllm-{}  | "):
        named = parse_engine_log("\n".join(prefix.format(pod) + line for pod, line in woven))
        assert (named.starts, stated(named) | {"results": 0}) == (pods, stated(last) | {"results": 0})
    unknown = "vllm-{} server " if seed % 2 else ""  # of a collector that is not known
    mixed = parse_engine_log("\n".join(unknown.format(pod) + line for pod, line in woven))
    *_, begun = (pod for pod, line in woven if "Initializing a V1" in line)
    assert stated(mixed) == {"error": mixed.error} or mixed.kv_cache_tokens == 1000 * begun + 1600
    assert parse_engine_log("\n".join(f"{line}\n{line}" for line in logs[0])).kv_cache_tokens == 1600  # printed twice


@pytest.mark.parametrize("indent", [None, 2])
def test_a_json_that_holds_logs_is_read_as_their_lines(indent):
    texts = [(LOGS / name).read_text() for name in WITH_A_START[:2]]
    forms = (
        {"engines": [{"name": "a", "log": text} for text in texts]},
        {"first": texts[0].splitlines(), "second": texts[1].splitlines()},
        [{"timestamp": 1, "message": line} for text in texts for line in text.splitlines()],
    )
    expected = parse_engine_log(texts[1])
    for form in forms:
        facts = parse_engine_log(json.dumps(form, indent=indent))
        assert facts.starts == 1 + expected.starts
        assert facts.model_dump(exclude={"starts", "read_from"}) == expected.model_dump(exclude={"starts", "read_from"})
    # A record beside a log is no log.
    record = {"choices": [{"text": "one\ntwo"}], "completed": 4}
    assert [line.text for line in read_lines(json.dumps(record))] == [json.dumps(record)]


def test_of_data_parallel_engines_each_says_once_that_it_starts():
    starts = "".join(
        f"(EngineCore_DP{n} pid=1) INFO 09-15 07:11:0{n} [core.py:123] Initializing a V1 LLM engine (v0.29.0)\n"
        for n in range(2)
    )
    sizes = "".join(
        f"(EngineCore_DP{n} pid=1) INFO 09-15 07:11:22 [a.py:1] GPU KV cache size: 1,600 tokens\n" for n in "01"
    )
    one, two = parse_engine_log(starts + sizes), parse_engine_log(starts + sizes + starts + sizes.replace("600", "760"))
    assert ((one.starts, one.kv_cache_tokens), (two.starts, two.kv_cache_tokens)) == ((1, 3200), (2, 3520))
    in_pods = parse_engine_log(re.sub(r"(?m)^(?=.EngineCore_DP(\d))", r"[pod/a-\1/b] ", starts + sizes))
    assert (in_pods.starts, in_pods.kv_cache_tokens) == (1, 3200)
    restarted = parse_engine_log(starts + sizes + starts)
    assert (restarted.starts, restarted.kv_cache_tokens) == (2, None)


def test_lines_of_docker_and_of_loggers_that_write_json():
    lines = ["[32mINFO[0m 05-30 16:23:28 a.py:1] # GPU blocks: 7, # CPU blocks: 2\n", "ValueError: \ud800 broke\n"]
    text = "".join(json.dumps({"log": line, "stream": "stderr", "time": "2024-05-30"}) + "\n" for line in lines)
    facts = parse_engine_log(text.replace(', "', ',"').replace('": ', '":'))
    assert (facts.num_gpu_blocks, facts.error) == (7, "ValueError: ? broke")
    records = [
        {"severity": "INFO", "message": "INFO 05-30 16:23:28 a.py:1] # GPU blocks: 7, # CPU blocks: 2"},
        {"level": "info", "msg": "KeyError: 'x'"},
        {"level": "error", "msg": "ValueError: No available memory for the cache blocks.\nTry increasing it."},
        {"msg": None, "nested": 1},
    ]
    facts = parse_engine_log("\n".join(json.dumps(record) for record in records) + "\n" + '{"a":' * 5000)
    assert (facts.num_gpu_blocks, facts.status) == (7, "kv_too_small")
    assert facts.error == "ValueError: No available memory for the cache blocks. Try increasing it."
    assert parse_engine_log(json.dumps(records[1])).status is None


# A hundred times what the lines need.
CPU_S = 300


def within_the_limit(read: Callable[[], object]) -> None:
    """Call a function in a child whose processor time is limited."""
    child = os.fork()
    if child == 0:
        resource.setrlimit(resource.RLIMIT_CPU, (CPU_S, CPU_S))
        try:
            read()
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == 0


@pytest.mark.parametrize(
    "text",
    [
        # Lines of one width, of which none begins a record: a terminal would have cut a line of 4 MB.
        "".join(f"{i:080}\n" for i in range(50_000)),
        # A statement that raises and does not end.
        "Traceback (most recent call last):\n    raise E(\n" + "    'text'\n" * 50_000,
    ],
)
def test_many_lines_are_not_joined_to_one(text):
    within_the_limit(lambda: parse_engine_log(text))
    assert max(len(line.text) for line in read_lines(text)) <= MOST_LINE


def test_a_line_that_is_too_long_keeps_both_ends():
    text = f"{{'itls': [{'0.01, ' * 50_000}], 'num_gpu_blocks is: 7'}}, Median TTFT (ms): 3.5"
    facts = parse_engine_log(f"KV cache size: 65,536 tokens {text}")
    assert (facts.kv_cache_tokens, facts.ttft_ms_median) == (65536, 3.5)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_a_log_is_read_as_a_redirect_of_any_shell_writes_it(tmp_path: Path, encoding):
    (tmp_path / "a.log").write_text("# GPU blocks: 7", encoding=encoding)
    assert read_log_text(tmp_path / "a.log") == "# GPU blocks: 7"


def test_a_log_of_too_many_lines_is_refused(tmp_path: Path):
    (tmp_path / "a.log").write_bytes(b"\r" * (2**20 + 1))
    with pytest.raises(InputError, match=r"a\.log: more than 1,048,576 lines"):
        read_log_text(tmp_path / "a.log")


# --- logs of vLLM 0.25.1 as one H200 and one H100 gave them ----------------------------------------------------------

CELL = "{}/vllm/llama-3.1-8b-instruct/chat/bs{}-seqs{}-len4096-util0.9"
FACTS = read_model_facts(get_model("llama-3.1-8b-instruct").config, "bfloat16")
GIB, BYTES_PER_TOKEN = 2**30, 2 * 2 * 32 * 8 * 128


@pytest.fixture(scope="module")
def starts(two_gpus_evidence):
    """Each start that ended well: its folder of raw files, and its outcome."""
    records = sorted((two_gpus_evidence / "cells").rglob("outcome.json"))
    assert len(records) == 30
    evidence = [(record.parent / "raw", Outcome.read(record)) for record in records]
    return [(raw, outcome) for raw, outcome in evidence if outcome.outcome == "ok"]


@pytest.fixture
def raw(two_gpus_evidence):
    return lambda *cell: two_gpus_evidence / "cells" / CELL.format(*cell) / "raw"


def test_facts_of_an_h200_and_of_a_block_size_that_it_refuses(raw):
    facts = read_engine_log(raw("h200", 16, 256) / "engine.log")
    assert {name: getattr(facts, name) for name in facts.read_from} == {
        **{"attention_backend": "FLASH_ATTN", "cudagraph_mode": "FULL_AND_PIECEWISE", "engine_version": "0.25.1"},
        **{"available_kv_cache_gib": 108.81, "cuda_graph_gib": 0.59, "model_weights_gib": 15.0, "compile_s": 18.21},
        **{"kv_cache_tokens": 891_392, "max_concurrency": 217.62, "max_concurrency_tokens_per_request": 4096},
        **{"block_size": 16, "max_cudagraph_capture_size": 512, "prefix_cache_hit_rate_pct": 0.0},
        **{"graphs_from_cache": False, "status": "ok"},
    }
    assert facts.derived == {"num_gpu_blocks": 55_712}
    facts = read_engine_log(raw("h200", 8, 256) / "engine.log")
    assert (facts.status, facts.block_size) == ("unsupported_block_size", 8)
    assert facts.error is not None
    assert facts.error.startswith("ValueError: No valid attention backend found")


@pytest.mark.parametrize("sequences", [1, 4, 16, 64, 256])
def test_the_captured_sizes_are_those_that_predictions_assume(raw, sequences):
    steps = vllm_steps(VllmKnobs(max_num_seqs=sequences, max_model_len=4096), get_gpu("h200"), FACTS)
    shown = read_engine_log(raw("h200", 16, sequences) / "engine.log")
    assert (steps.graphs.tokens, steps.graphs.mode) == (shown.max_cudagraph_capture_size, shown.cudagraph_mode)
    assert steps.graphs.decode_tokens == sequences


def test_every_log_gives_the_blocks_that_the_engine_reported(starts):
    of_vllm = [(folder, outcome) for folder, outcome in starts if outcome.cell_id.split("/")[1] == "vllm"]
    assert len(of_vllm) == 26
    for folder, outcome in of_vllm:
        facts, effective = read_engine_log(folder / "engine.log"), outcome.effective
        assert facts.derived["num_gpu_blocks"] == effective["num_gpu_blocks"]
        assert facts.kv_cache_tokens == effective["num_gpu_blocks"] * effective["block_size"]
        assert facts.max_concurrency == pytest.approx(facts.kv_cache_tokens / effective["max_model_len"], abs=0.005)
        if "llama" in outcome.cell_id:
            assert facts.kv_cache_tokens * BYTES_PER_TOKEN / GIB == pytest.approx(
                facts.available_kv_cache_gib, abs=0.02
            )
