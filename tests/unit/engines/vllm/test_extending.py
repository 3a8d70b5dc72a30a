"""The recipe "a log pattern" of docs/extending.md: its row reads its line."""

import re

from tests.recipes import blocks, recipe
from workflow_scripts.engines.vllm import log_facts as engine_log_facts
from workflow_scripts.parse.engine_log import parse_engine_log

RECIPE = recipe("A log pattern")


def test_a_row_reads_a_line(monkeypatch):
    (line,), (row,) = blocks(RECIPE, "text"), blocks(RECIPE, "python")
    assert parse_engine_log(line).num_gpu_blocks is None
    added = eval(row, vars(engine_log_facts))  # code of this repository
    monkeypatch.setattr(engine_log_facts, "ROWS", (*engine_log_facts.ROWS, added))
    words = re.search(r"`_WORTH_A_LOOK`, so add `([^`]+)` there", RECIPE)
    assert words
    looked_at = re.compile(f"{engine_log_facts._WORTH_A_LOOK.pattern}|{words[1]}")
    monkeypatch.setattr(engine_log_facts, "_WORTH_A_LOOK", looked_at)
    facts = parse_engine_log(line)
    assert (facts.num_gpu_blocks, facts.block_size, facts.read_from["num_gpu_blocks"]) == (5867, 16, 1)
