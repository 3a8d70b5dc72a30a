"""Numbers of the two GPUs' study, recomputed from the raw files of its evidence without the code under test."""

import json
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from workflow_scripts.parse.cell_tables import _counted_j, parse_cells
from workflow_scripts.questions.limits import table as limits
from workflow_scripts.questions.memory import fragmentation
from workflow_scripts.study.grid import expand
from workflow_scripts.study.study_file import load_study
from workflow_scripts.tables import cells as cells_module
from workflow_scripts.tables.request_lives import shared_texts

STUDY = Path("config/studies/two_gpus.yaml")
GPUS = ("h200", "h100-sxm")
CHAT = "{}/vllm/llama-3.1-8b-instruct/chat/bs16-seqs{}-len4096-util0.9"
# Llama-3.1-8B in bfloat16: the bytes of all matrices that a decode step reads, and those of a token's keys and values.
WEIGHT_BYTES, KV_BYTES = 2 * (8_030_261_248 - 128_256 * 4096 - 65 * 4096), 2 * 2 * 32 * 8 * 128


@pytest.fixture(scope="module")
def raw(two_gpus_evidence):
    """Reads one repeat of a cell: its requests, steps and samples with times since its beginning, and its wall time."""

    @cache
    def read(cell_id, start=1, repeat=0):
        folder = two_gpus_evidence / "cells" / cell_id / (f"start-{start}" if start > 1 else "")
        outcome = json.loads((folder / "outcome.json").read_text())
        times = next(r for r in outcome["repeats"] if r["repeat"] == repeat)
        began, ended = times["start_monotonic_s"], times["end_monotonic_s"]

        def lines(name):
            table = pd.DataFrame(json.loads(line) for line in (folder / "raw" / name).read_text().splitlines())
            clocks = [name for name in table if name.endswith("_s") and name != "itl_s"]
            return table.assign(**{name: table[name] - began for name in clocks})

        trace = lines("device_trace.jsonl")
        return SimpleNamespace(
            requests=(r := lines("requests.jsonl"))[r["repeat"] == repeat].reset_index(drop=True),
            steps=(s := lines("steps.jsonl"))[s["repeat"] == repeat].reset_index(drop=True),
            trace=trace[trace["time_monotonic_s"].between(0, ended - began)].reset_index(drop=True),
            samples=trace,
            wall_s=ended - began,
        )

    return read


@pytest.fixture(scope="module")
def found(two_gpus_evidence, tmp_path_factory):
    """The tables that the code under test makes of the same files, indexed by cell, start and repeat."""
    parsed, study = tmp_path_factory.mktemp("parsed"), load_study(STUDY)
    for gpu in GPUS:
        parse_cells(two_gpus_evidence / "cells", gpu, parsed / gpu, processes=1)
    cells = cells_module.measured_rows(study, expand(study), parsed)
    _, limited, _ = limits.checked(cells, study, parsed, two_gpus_evidence / "prepared/devices")
    waste = fragmentation.waste_table(cells, parsed, shared_texts(study))
    at = ["cell_id", "start", "repeat"]
    return SimpleNamespace(
        cells=cells.set_index(at).sort_index(),
        limits=limited.set_index([*at, "rates"]).sort_index(),
        waste=waste[waste["layout"] == "paged"].set_index(at).sort_index(),
    )


def steps_of_requests(raw_repeat):
    """Times of the steps that gave tokens, and for each request the positions of its first and its last step."""
    steps = raw_repeat.steps[raw_repeat.steps["generation_tokens"] > 0]
    times_s = steps["time_s"].to_numpy()
    position = {time_s: i for i, time_s in enumerate(times_s)}
    requests = raw_repeat.requests
    first, last = (requests[name].map(position).to_numpy() for name in ("first_token_s", "last_token_s"))
    assert (last - first + 1 == requests["output_tokens"]).all()
    return times_s, first, last


# --- weights read ------------------------------------------------------------------------------------------------


def test_mbu_counts_no_record_in_which_the_engine_did_nothing(raw, found):
    cell_id = CHAT.format("h200", 1)
    shares = []
    for repeat in range(3):
        r = raw(cell_id, repeat=repeat)
        assert len(r.steps) == 1279
        assert (r.steps["generation_tokens"] > 0).sum() == r.requests["output_tokens"].sum() == 1268
        read = sum(
            p + j
            for p, o in zip(r.requests["prompt_tokens"], r.requests["output_tokens"], strict=True)
            for j in range(o - 1)
        )
        shares.append((1268 * WEIGHT_BYTES + read * KV_BYTES) / r.wall_s / 4.8e12)
        row = found.limits.loc[(cell_id, 1, repeat, "datasheet")]
        assert row["steps"] == 1268
        assert row["mbu"] == pytest.approx(shares[-1], rel=2e-4)
    assert np.median(shares) == pytest.approx(0.616, abs=5e-4)


# --- KV memory and the steady rate: when tokens came -------------------------------------------------------------


@pytest.mark.parametrize(
    ("cell_id", "block_size", "start"),
    [
        (CHAT.format("h200", 256), 16, 1),
        (CHAT.format("h200", 256), 16, 2),
        (CHAT.format("h100-sxm", 64), 16, 1),
        (CHAT.format("h200", 256).replace("bs16", "bs128"), 128, 1),
    ],
)
def test_kv_memory_used_is_what_the_engine_says_it_holds(raw, found, cell_id, block_size, start):
    r, row = raw(cell_id, start), found.waste.loc[(cell_id, start, 0)]
    times_s, first, last = steps_of_requests(r)
    steps_s = np.diff(times_s, prepend=np.nan)
    tokens = slots = 0.0
    for i, request in enumerate(r.requests.itertuples()):
        held = request.prompt_tokens + np.arange(request.output_tokens)
        lasts_s = steps_s[first[i] : last[i] + 1].copy()
        lasts_s[0] = request.first_token_s - request.scheduled_s
        tokens += held @ lasts_s
        slots += np.ceil(held / block_size) @ lasts_s * block_size
    span_s = r.requests["last_token_s"].max() - r.requests["scheduled_s"].min()
    assert row["tokens_held_mean"] == pytest.approx(tokens / span_s)
    assert row["slots_held_mean"] == pytest.approx(slots / span_s, rel=2e-3)
    assert found.cells.loc[(cell_id, start, 0), "kv_bytes_used_mean"] == pytest.approx(tokens / span_s * KV_BYTES)
    # The engine's own gauge, which it reads when finished requests have given their blocks back.
    assert row["slots_held_mean"] == pytest.approx(row["engine_slots_held_mean"], rel=0.015)


def test_the_steady_rate_counts_the_tokens_that_came_while_the_engine_was_full(raw, found):
    medians, shares = {}, {}
    for sequences in (16, 256):
        cell_id, rates, drains = CHAT.format("h200", sequences), [], []
        for start in (1, 2):
            for repeat in range(3):
                r = raw(cell_id, start, repeat)
                full_s = r.requests["first_token_s"].nsmallest(sequences).iloc[-1]
                until_s = r.requests["last_token_s"].nlargest(sequences).iloc[-1]
                inside = r.steps["time_s"].gt(full_s) & r.steps["time_s"].le(until_s)
                rates.append(r.steps.loc[inside, "generation_tokens"].sum() / (until_s - full_s))
                drains.append(1 - until_s / r.wall_s)
                row = found.cells.loc[(cell_id, start, repeat)]
                assert row["steady_output_tokens_per_s"] == pytest.approx(rates[-1])
                assert row["steady_s"] == pytest.approx(until_s - full_s)
                assert row["drain_share"] == pytest.approx(drains[-1])
        medians[sequences], shares[sequences] = np.median(rates), np.median(drains)
    assert medians == pytest.approx({16: 2338, 256: 11320}, rel=1e-3)
    assert shares == pytest.approx({16: 0.72, 256: 0.48}, abs=0.01)


# --- energy ------------------------------------------------------------------------------------------------------


def test_power_of_a_short_repeat_is_that_of_the_energy_counter(raw, found):
    cell_id = "h200/vllm/llama-3.1-8b-instruct/short/bs16-seqs256-len4096-util0.5"
    powers_w = []
    for repeat in range(3):
        r = raw(cell_id, repeat=repeat)
        assert r.wall_s == pytest.approx(0.2, abs=0.01)
        assert len(r.trace) == 2
        counted = r.samples[["time_monotonic_s", "energy_j"]].dropna().to_numpy().T
        energy_j = np.diff(np.interp([0, r.wall_s], *counted)).item()
        powers_w.append(energy_j / r.wall_s)
        row = found.cells.loc[(cell_id, 1, repeat)]
        assert row["power_w_mean"] == pytest.approx(powers_w[-1])
        assert row["energy_j"] == pytest.approx(energy_j)
    assert powers_w[0] == pytest.approx(521, abs=0.5)
    assert raw(cell_id).trace["power_w"].mean() == pytest.approx(411, abs=0.5)


@pytest.mark.parametrize(
    ("readings", "counted_j"),
    [
        ({0.5: 100.0, 1.5: 200.0, 2.5: 400.0}, 0.5 * 100 + 0.5 * 200),
        ({1.5: 200.0, 2.5: 400.0}, None),  # no reading before the beginning
        ({0.5: 100.0, 1.5: 200.0, 1.9: None, 2.5: None}, None),  # the GPU was lost
        ({0.5: 100.0, 1.5: 200.0, 3.5: 400.0}, None),  # read too late
    ],
)
def test_energy_is_counted_only_between_readings_near_both_ends(readings, counted_j):
    samples = pd.DataFrame(readings.items(), columns=["time_monotonic_s", "energy_j"])
    assert _counted_j(samples, 1.0, 2.0) == counted_j
