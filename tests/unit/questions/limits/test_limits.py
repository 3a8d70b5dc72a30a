import math

import pandas as pd
import pytest

from tests.unit.made_rates import made_rates
from tests.unit.made_studies import made_study
from tests.unit.questions.parsed_tables import requests, steps, write_parsed
from tests.unit.questions.synthetic_cells import cell, only, table
from workflow_scripts.catalog.gpus_and_models import get_model
from workflow_scripts.physics.model_facts import read_model_facts
from workflow_scripts.questions.limits import table as limits
from workflow_scripts.questions.limits.table import SCHEMA, limits_table, mark_invalid
from workflow_scripts.tables.work import read_work

TINY = read_model_facts(get_model("tiny-llama-57m").config, "float32")

# 24 requests of (prompt, output) that vLLM 0.32 served with at most 16 sequences at once. No prefix was shared.
CHAT = [
    (28, 10), (30, 19), (21, 19), (24, 16), (39, 8), (30, 23), (45, 26), (23, 19), (36, 27), (24, 23), (29, 40),
    (41, 43), (19, 33), (40, 11), (15, 20), (18, 18), (34, 20), (71, 16), (11, 33), (35, 15), (37, 12), (57, 17),
    (34, 17), (27, 32),
]  # fmt: skip


def measured_device(folder, *rates, gpu="cpu-all", **changes):
    made_rates(*rates, gpu=gpu, **changes).write(folder / f"{gpu}.json")


class Parsed:
    """A folder of parsed tables and device records, filled cell by cell."""

    def __init__(self, folder):
        self.folder, self.devices = folder / "parsed", folder / "devices"
        self.devices.mkdir()
        self.cells, self.served = [], {}

    def cell(self, rows, knobs=None, wall_s=10.0, steps_taken=0, *, gpu="cpu-all", model="tiny-llama-57m", **columns):
        """A cell of one repeat that served `rows` in `wall_s`; returns its id."""
        output = sum(o for _, o, _ in rows)
        times = {"wall_s": wall_s, "total_tokens_per_s": (output + sum(p for p, _, _ in rows)) / wall_s}
        made = cell(knobs or {"max_num_seqs": 16}, (output / wall_s,), gpu=gpu, model=model, **(times | columns))
        self.cells.append(made)
        name = made[0]["cell_id"]
        self.served.setdefault(gpu, []).append((requests(name, *rows), steps(name, steps_taken)))
        return name

    def table(self):
        for gpu, served in self.served.items():
            for name, frames in zip(("requests", "steps"), zip(*served, strict=True), strict=True):
                write_parsed(self.folder / gpu, name, *frames)
        return table(*self.cells)

    def limits(self):
        return limits_table(read_work(self.table(), self.folder), self.devices)


@pytest.fixture
def parsed(tmp_path):
    return Parsed(tmp_path)


def row(parsed, *cell_id, rates="measured"):
    """The row of a cell, by default the only one with measured rates."""
    found, reasons = parsed.limits()
    assert reasons == []
    found = found[found["rates"].eq(rates) & found["cell_id"].isin(cell_id or found["cell_id"])]
    return only(found)


# --- the engine's own estimate -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rows", "flops", "apart"),
    [
        ([(p, o, 0) for p, o in CHAT], 131_419_643_904, 0.003),
        ([(272, 8, 0)] + [(272, 8, 256)] * 23, 87_961_632_768, 0.012),
        # The estimate lets every prompt token look at all of its prompt's tokens.
        ([(272, 8, 0)] * 24, 719_932_096_512, 0.032),
    ],
)
def test_operations_agree_with_what_the_engine_counted(parsed, rows, flops, apart):
    measured_device(parsed.devices)
    parsed.cell(rows)
    found = row(parsed)
    assert 0 < flops / found["flops"] - 1 < apart
    # In 10 s, by the 100 GFLOP/s of the device; without steps nothing is known of what was read.
    assert found["mfu"] == pytest.approx(found["flops"] / 1e12)
    assert math.isnan(found["mbu"])


# --- ceilings ----------------------------------------------------------------------------------------------------


def test_ceilings_count_output_tokens_or_all_tokens_over_the_same_time(parsed):
    measured_device(parsed.devices)
    parsed.cell([(10, 3, 0)] * 4, steps_taken=5)
    # A shared prefix is read once per step.
    shared = parsed.cell([(64, 3, 32)] * 4, {"max_num_seqs": 8}, steps_taken=3)
    kv_bytes = (4 * (64 + 65) - 4 * 2 * 32 * 3 / 4) * TINY.bytes_per_token()
    assert row(parsed, shared)["read_bytes"] == pytest.approx(3 * TINY.decode_weight_bytes + kv_bytes)
    found = row(parsed, parsed.cells[0][0]["cell_id"])
    kv = 4 * 21 * TINY.bytes_per_token()
    assert found["read_bytes"] == 5 * TINY.decode_weight_bytes + kv  # by the steps that were taken
    assert found["flops"] == 4 * TINY.request_flops(10, 3)
    memory_s = (3 * TINY.decode_weight_bytes + kv) / 10e9
    arithmetic_s = 4 * TINY.request_flops(10, 3) / 100e9
    assert found["wall_s_min"] == pytest.approx(max(memory_s, arithmetic_s))
    assert found["output_tokens_per_s_ceiling"] == pytest.approx(12 / max(memory_s, arithmetic_s))
    assert found["total_tokens_per_s_ceiling"] == pytest.approx(52 / max(memory_s, arithmetic_s))
    assert (found["memory_bandwidth_bytes_per_s"], found["flop_per_s"]) == (10e9, 100e9)
    assert (found["sequences_max"], found["steps_min"], found["output_tokens_per_step_max"]) == (4, 3, 4)
    assert found["steps_bound_by"] == "requests"
    assert found["source"] == "predicted"


def test_the_measured_rate_of_the_cache_is_a_ceiling_of_its_own_and_without_it_arithmetic_alone(parsed):
    parsed.cell([(10, 3, 0)] * 4, steps_taken=3, wall_s=1.0)
    by_size = {2**22: 40e9, 2**26: 20e9, 2**30: 10e9}
    measured_device(parsed.devices, last_level_cache_bytes=10**9, read_bytes_per_s_by_size=by_size, flop_per_s=1e15)
    found = row(parsed)
    assert found["weights_fit_cache"]
    assert (found["read_bytes_per_s"], found["memory_bandwidth_bytes_per_s"]) == (20e9, 10e9)
    assert (found["bound_by"], found["decode_bound_by"]) == ("cache bandwidth", "cache bandwidth")
    kv = (10 + 11) * 4 * TINY.bytes_per_token()
    assert found["output_tokens_per_s_ceiling"] == pytest.approx(12 * 20e9 / (3 * TINY.decode_weight_bytes + kv))
    assert found["mbu"] == pytest.approx((3 * TINY.decode_weight_bytes + kv) / 20e9)
    assert not found["exceeds"]
    measured_device(parsed.devices, last_level_cache_bytes=10**9)
    found = row(parsed)
    assert found["weights_fit_cache"]
    assert found["read_bytes_per_s"] == found["memory_bandwidth_bytes_per_s"]
    assert found["output_tokens_per_s_ceiling"] == pytest.approx(12 / found["wall_s_min"])
    assert found["bound_by"] == "arithmetic"


def test_knobs_reach_the_ceilings(parsed):
    llama = {"gpu": "h200", "model": "llama-3.1-8b-instruct", "steps_taken": 20}
    drafting = {"speculative_method": "ngram", "num_speculative_tokens": 4}
    changes = ({}, {"quantization": "awq"}, {"kv_cache_dtype": "fp8"}, {"tensor_parallel_size": 2}, drafting)
    ids = [parsed.cell([(1000, 20, 0)], {"max_num_seqs": 8} | of, **llama) for of in changes]
    plain, awq, fp8, two, drafted = (row(parsed, name, rates="datasheet") for name in ids)
    assert (plain["steps_min"], drafted["steps_min"]) == (20, 5)  # the first token, and 19 in steps of up to five
    assert two["decode_memory_s"] == pytest.approx(plain["decode_memory_s"] / 2)
    # Two devices have each a part of the same work.
    assert two[["mbu", "mfu"]].tolist() == pytest.approx((plain[["mbu", "mfu"]] / 2).tolist())
    facts = read_model_facts(get_model("llama-3.1-8b-instruct").config, "bfloat16")
    kv_tokens = 19 * 1000 + 19 * 18 / 2
    saved_s = plain["decode_memory_s"] - fp8["decode_memory_s"]
    assert saved_s == pytest.approx(kv_tokens * facts.bytes_per_token() / 2 / 4.8e12)
    small = read_model_facts(get_model("llama-3.1-8b-instruct").config, "bfloat16", "awq")
    fewer = 19 * (facts.decode_weight_bytes - small.decode_weight_bytes)
    assert plain["decode_memory_s"] - awq["decode_memory_s"] == pytest.approx(fewer / 4.8e12)
    assert [of["flop_per_s"] for of in (plain, awq, fp8)] == [989.5e12, 1979e12, 989.5e12]
    # An FP8 cache halves the time of attention alone; MFU is of the rate of the 16-bit weights.
    attention_s = 4 * 32 * 4096 * 1000 * 1001 / 2 / 989.5e12
    saved_s = plain["prefill_arithmetic_s"] - fp8["prefill_arithmetic_s"]
    assert saved_s == pytest.approx(attention_s / 2)
    assert fp8["mfu"] == plain["mfu"]


def test_the_block_that_vllm_keeps_to_itself_is_none_of_a_request(parsed):
    measured_device(parsed.devices)
    blocks = {"num_gpu_blocks": 6, "block_size_effective": 8}
    vllm = parsed.cell([(9, 4, 0)] * 4, {"max_num_seqs": 16}, **blocks)
    knobs = {"page_size": 8, "num_blocks": 6, "max_batch_tokens": 64}
    others = parsed.cell([(9, 4, 0)] * 4, knobs, engine="hf-continuous", **blocks)
    # Each request holds 2 blocks in each of its 4 steps.
    assert [row(parsed, of)["steps_min"] for of in (vllm, others)] == [math.ceil(32 / 5), math.ceil(32 / 6)]


# --- verdicts ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rates", "tolerance", "output", "total", "factor", "broken"),
    [
        ("datasheet", 0.0, 10.01, 1.0, 1.001, "output_tokens_per_s: arithmetic of the data sheet"),
        ("datasheet", 0.0, 1.0, 15.0, 1.5, "total_tokens_per_s: arithmetic of the data sheet"),
        ("measured", 0.25, 12.5, 1.0, 1.25, None),
        ("measured", 0.25, 12.51, 1.0, 1.251, "output_tokens_per_s: arithmetic of the device as measured"),
        ("measured", math.inf, 9e9, 1.0, 9e8, None),  # rates that were disturbed call nothing impossible
    ],
)
def test_a_value_at_its_ceiling_is_possible(rates, tolerance, output, total, factor, broken):
    of_rates = {"rates": [rates], "tolerance": tolerance, "bound_by": "arithmetic"}
    ceilings = dict.fromkeys(("output_tokens_per_s_ceiling", "total_tokens_per_s_ceiling"), 10.0)
    measured = {"output_tokens_per_s": output, "total_tokens_per_s": total}
    (found,) = limits._verdict(pd.DataFrame(of_rates | ceilings | measured)).to_dict("records")
    assert (found["exceeds"], found["factor"]) == (broken is not None, pytest.approx(factor))
    assert (None if pd.isna(found["ceiling_broken"]) else found["ceiling_broken"]) == broken


def test_marking_a_cell_invalid_keeps_its_values_and_leaves_the_others():
    broken, fine = cell({"max_num_seqs": 1}, (10.0, 30.0, 20.0)), cell({"max_num_seqs": 2}, (10.0,))
    late = cell({"max_num_seqs": 4}, (99.0,), outcome="timeout", reason="too slow")
    published = cell({"max_num_seqs": 1}, (10.0,), source="measured elsewhere")
    cells = table(broken, fine, late, published)
    found = cells.loc[cells["source"] == "measured", ["cell_id", "start", "repeat"]].assign(
        factor=[0.9, 3.14159, 2.0, 1.1, 9.0],
        exceeds=pd.array([False, True, True, False, True], dtype="boolean"),
        ceiling_broken=pd.array([None, "this one", "that one", None, "another"], dtype="string"),
    )
    marked = mark_invalid(cells, found)
    assert marked["outcome"].tolist() == ["invalid"] * 3 + ["ok", "timeout", "ok"]
    reason = "repeat 1 of start 1 is 3.14 times its ceiling on this one"
    assert marked["reason"].fillna("").tolist() == [reason] * 3 + ["", "too slow", ""]
    unchanged = [name for name in cells.columns if name not in ("outcome", "reason")]
    pd.testing.assert_frame_equal(marked[unchanged], cells[unchanged])
    assert "repeat 1 of start 2" in mark_invalid(cells, found.assign(start=2))["reason"][0]


# --- what has no limits ------------------------------------------------------------------------------------------


def test_a_device_without_rates_is_said_once_and_a_model_without_facts_too(parsed):
    parsed.cell([(10, 3, 0)])
    parsed.cell([(10, 3, 0)], {"max_num_seqs": 4})
    found, (reason,) = parsed.limits()
    assert found.empty
    assert "limits on cpu-all" in reason
    measured_device(parsed.devices)
    parsed.cell([(10, 3, 0)], {"max_num_seqs": 1, "quantization": "compressed-tensors"})
    found, (reason,) = parsed.limits()
    assert len(found) == 2
    assert reason.startswith("no limits of tiny-llama-57m: ")
    assert "quantization 'compressed-tensors' is not supported" in reason
    nothing, reasons = limits_table(pd.DataFrame(), parsed.devices)
    assert (list(nothing.columns), len(nothing), reasons) == (list(SCHEMA.columns), 0, [])


def test_only_the_studys_own_cells_have_limits_and_what_has_none_is_said(parsed, tmp_path):
    second = parsed.cell([(10, 3, 0)], {"max_num_seqs": 2}, steps_taken=3)
    first = parsed.cell([(10, 3, 0)], {"max_num_seqs": 1}, steps_taken=3)
    parsed.cell([(10, 3, 0)], {"max_num_seqs": 3}, study="another")
    parsed.cell([(10, 3, 0)], {"max_num_seqs": 4}, source="measured elsewhere")
    cells, study = parsed.table(), made_study({"gpu": "cpu-all", "model": "tiny-llama-57m"})
    same, found, (reason,) = limits.checked(cells, study, parsed.folder, parsed.devices)
    assert (found.empty, "no limits on cpu-all" in reason) == (True, True)
    assert same["outcome"].tolist() == cells["outcome"].tolist()
    measured_device(parsed.devices)
    _, found, reasons = limits.checked(cells, study, parsed.folder, parsed.devices)
    assert (found["cell_id"].tolist(), found["steps"].tolist(), reasons) == ([first, second], [3, 3], [])
