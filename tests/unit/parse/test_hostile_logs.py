"""Logs and traces made to be slow to read: the time grows with their size alone."""

import os
import resource
from collections.abc import Callable
from pathlib import Path

import pytest

from workflow_scripts.common.faults import InputError
from workflow_scripts.logs.engine_log_text import MOST_LINE, read_lines, read_log_text
from workflow_scripts.parse.device_trace import parse_trace
from workflow_scripts.parse.engine_log import parse_engine_log

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


def test_a_log_of_too_many_lines_is_refused(tmp_path: Path):
    (tmp_path / "a.log").write_bytes(b"\r" * (2**20 + 1))
    with pytest.raises(InputError, match=r"a\.log: more than 1,048,576 lines"):
        read_log_text(tmp_path / "a.log")


@pytest.mark.parametrize(
    "text",
    [
        "timestamp, power.draw [W]\n" + "1," * 500_000,
        "power.draw [W]\n" + "9" * 500_000 + " W\n",
        "[" * 100_000,
        '{"power_w": ' + "[" * 100_000,
        '{"power_w": 1e999}\n{"power_w": ' + "9" * 5000 + "}\n",
        '{"throttle_reasons": [1, [2]], "power_w": 3}',
    ],
)
def test_a_trace_without_samples_is_read_too(text):
    table = parse_trace(text).table()
    assert table.reindex(columns=["power_w"])["power_w"].dropna().tolist() == ([3.0] if "throttle" in text else [])
