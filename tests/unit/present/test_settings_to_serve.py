"""Recommended settings and the workloads that they were measured with."""

import pandas as pd

from tests.unit.present.conftest import changed, in_table
from workflow_scripts.page.blocks import Command, Table
from workflow_scripts.questions.cells.workload_requests import workloads
from workflow_scripts.questions.recommendations.section import commands


def test_each_command_is_shown_once_with_all_that_it_is_recommended_for(report, tmp_path):
    table = in_table(report, "recommendations")
    first = table[table["gpu"].eq(table["gpu"].iloc[0]) & table["workload"].eq(table["workload"].iloc[0])]
    both = first[first["role"].isin(["best_throughput", "smallest_within_margin"])]
    assert len(both) == 2
    none = first[:1].assign(role="best_within_latency", command=None, eligible=0)
    rows = pd.concat([both.assign(command="vllm serve org/model", eligible=2), none])
    block, without = commands(changed(report, tmp_path, recommendations=rows))
    assert (without.command, len(without.why)) == ("", 1)
    assert isinstance(block, Command)
    assert block.command == "vllm serve org/model"
    roles = ("highest throughput: ", "smallest setting within the margin of the fastest: ")
    assert [line for line in block.why if line.startswith(roles)] == block.why
    of_two = changed(report, tmp_path / "two", recommendations=rows[:2].assign(gpu=["h200", "h100-sxm"]))
    assert [line.partition(",")[0] for line in next(commands(of_two)).why] == ["h200", "h100-sxm"]
    # The smallest of one setting is no advice, and a mean that no test shows to be higher is not called the highest.
    undecided = rows[:2].assign(eligible=1, ties=both["knobs"].iloc[0])
    (block,) = commands(changed(report, tmp_path / "tied", recommendations=undecided))
    assert isinstance(block, Command)
    assert len(block.why) == 1
    assert "the highest of" not in block.why[0]
    # One of one setting is neither the highest nor the smallest.
    (alone,) = commands(changed(report, tmp_path, recommendations=rows[:2].assign(compared=1)))
    assert isinstance(alone, Command)
    assert [line.endswith("the only setting that was measured.") for line in alone.why] == [True, True]


def test_a_workload_has_the_requests_that_its_cells_served(report, tmp_path, cells):
    chat = cells["workload"].eq("chat") & cells["repeat"].notna()
    cells.loc[chat, "num_requests"] = [12, *[512] * (chat.sum() - 1)]
    table = next(block for block in workloads(changed(report, tmp_path, cells=cells)) if isinstance(block, Table))
    place = table.headings.index("Requests per cell")
    assert {row[0]: row[place] for row in table.rows}["chat"] == "12 to 512"
    prompt = table.headings.index("Prompt tokens")
    assert {row[0]: row[prompt] for row in table.rows}["system-prompt"] == "512 shared and 64"
