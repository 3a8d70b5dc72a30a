"""Servers of one model under the same number of users."""

import pytest

from tests.unit.questions.synthetic_cells import around, cell, starts_table
from workflow_scripts.questions.serving.side_by_side import SCHEMA, server_ratios

PLACE = {"model": "smollm-135m"}


def vllm(rate, users, **columns):
    return cell({"max_num_seqs": 8, "users": users}, around(rate), engine="vllm-serve", **PLACE, **columns)


def other(rate, users, **columns):
    knobs = {"endpoint": "transformers-serve", "users": users}
    return cell(knobs, around(rate), engine="openai", **PLACE, **columns)


def test_each_number_of_users_has_its_improvement_ratio():
    rates = {1: (200, 100), 5: (900, 110), 20: (1000, 1000.5)}
    cells = [of for n, (a, b) in rates.items() for of in (vllm(a, n), other(b, n))]
    table = SCHEMA.validate(server_ratios(starts_table(*cells)))
    assert table["users"].tolist() == list(rates)
    assert table["ratio"].tolist() == pytest.approx([2, 900 / 110, 1], rel=0.01)
    assert table["verdict"].tolist()[:2] == ["faster", "faster"]
    assert (table["ratio_low"] < table["ratio"]).all()
    assert set(table["server"]) == {"transformers-serve"}


def test_servers_with_other_work_or_users_do_not_meet():
    fewer = other(100, 5, output_tokens=900)  # one that stops at an end token
    assert server_ratios(starts_table(vllm(900, 5), fewer, other(100, 1))).empty
    assert server_ratios(starts_table(vllm(900, 5))).empty
