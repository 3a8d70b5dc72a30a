"""The cells table, checked by hand: what is derived from the parsed tables, and which rows exist."""

import pandas as pd
import pytest

from tests.unit.made_studies import fixed, study_content
from tests.unit.questions.parsed_tables import COLUMNS, repeated, requests, started, write_parsed
from workflow_scripts.common.faults import InputError
from workflow_scripts.study.definition import cell_definition, definition_sha256, resolved_models
from workflow_scripts.study.grid import expand
from workflow_scripts.study.study import Study
from workflow_scripts.tables.cells import measured_rows
from workflow_scripts.tables.measurements import FRAME_COLUMNS
from workflow_scripts.tables.parsed_facts import read_parsed

MODEL = "tiny-llama-57m"
DEFINITION = study_content(
    *(
        {"name": name, "gpu": gpu, "engine": engine, "model": MODEL, "knobs": knobs}
        for name, gpu, engine, knobs in (
            ("seqs", "cpu-all", "vllm", {"block_size": 32, "max_num_seqs": [4, 8]}),
            ("blocks", "cpu-all", "vllm", {"block_size": 32, "max_num_seqs": 4}),
            ("static", "cpu-all", "hf-static", {"batch_size": 2}),
            ("elsewhere", "h200", "vllm", {"block_size": 16, "max_num_seqs": 4}),
        )
    ),
    repeats=2,
    workloads={"chat": fixed(2, 10, 5)},
    engine_defaults={"vllm": {"max_model_len": 512}},
)
STUDY = Study.model_validate(DEFINITION)
CELLS = expand(STUDY)
FOUR, EIGHT, STATIC, H200 = (cell.id for cell in CELLS)

OF_START = {"kv_cache_tokens": 3104, "max_concurrency": 6.25, "block_size_effective": 32, "num_gpu_blocks": 100}
OF_START |= {"effective": '{"block_size": 32}', "attention_backend": "CPU_ATTN", "start_s": 40.0, "host": "here"}
OF_START |= {"graphs_from_cache": True, "protocol": 3}
OF_REPEAT = {"start_unix_s": 1_700_000_000.0, "prefix_cache_queries": 40.0, "prefix_cache_hits": 10.0}
OF_REPEAT |= {"estimated_flops": 9e12, "host_cache_hits": 5.0}


def definition_of(cell_id, study=STUDY):
    [cell] = [cell for cell in CELLS if cell.id == cell_id]
    return definition_sha256(cell_definition(study, cell, resolved_models(study)))


def two_requests(cell_id, repeat=0):
    """10 + 5 and 20 + 3 tokens, scheduled at 0 s, first tokens after 1 s, last ones after 3 s and 4 s."""
    return requests(cell_id, (10, 5, 0, 0.0, 1.0, 3.0), (20, 3, 0, 0.0, 1.0, 4.0), repeat=repeat)


def of_study(folder, *starts, repeats=None, served=(), **others):
    """The table of STUDY, of which only cpu-all was measured, by cell and repeat; by default, of one repeat."""
    if repeats is None:
        repeats = [repeated(of["cell_id"].item(), OF_REPEAT).assign(start=of["start"].item()) for of in starts]
    tables = {"starts": starts, "repeats": repeats, "requests": served, **others}
    for name, columns in COLUMNS.items():
        frames = tables.get(name) or [pd.DataFrame(columns=list(columns))]
        full = [frame.reindex(columns=list(columns)).astype(columns) for frame in frames]
        write_parsed(folder / "cpu-all", name, *full)
    return measured_rows(STUDY, CELLS, folder)


def of_start(cell_id=FOUR, **changes):
    return started(cell_id, **OF_START | changes)


def row_of(table, cell_id):
    [row] = table[table["cell_id"] == cell_id].to_dict("records")
    return row


def test_every_cell_of_the_study_has_a_row_with_what_it_asks_for_also_if_nothing_was_run(tmp_path):
    of_one = of_study(tmp_path, of_start(), served=[two_requests(FOUR)])
    of_none = measured_rows(STUDY, CELLS, tmp_path / "none")
    expected = {
        "cell_id": [FOUR, EIGHT, STATIC, H200],
        "study": ["try"] * 4,
        "sweeps": ["seqs,blocks", "seqs", "static", "elsewhere"],
        "comparable": [False] * 4,  # nothing says what was measured
        "source": ["measured"] * 4,
        "knobs": [cell.knobs.slug() for cell in CELLS],
        "max_concurrency_allowed": [4, 8, 2, 4],
    }
    knobs = {"knob_max_num_seqs": [4, 8, 0, 4], "knob_block_size": [32, 32, 0, 16], "knob_batch_size": [0, 0, 2, 0]}
    knobs |= {"knob_max_model_len": [512, 512, 0, 512]}
    for table, first in ((of_one, "ok"), (of_none, "missing")):
        assert table["outcome"].tolist() == [first, "missing", "missing", "missing"]
        assert table[list(expected)].to_dict("list") == expected
        assert table[list(knobs)].fillna(0).to_dict("list") == knobs
        names = table["cell_id"].str.rsplit("/", n=1).str[0]
        assert (names == table[["gpu", "engine", "model", "workload"]].agg("/".join, axis="columns")).all()
    assert set(of_one) == set(FRAME_COLUMNS) | set(knobs) | {"knob_cache_implementation"}


def test_each_start_has_its_own_outcome_and_its_own_repeats(tmp_path):
    table = of_study(
        tmp_path,
        of_start(),
        of_start(round=2, position=3, block_size_effective=64).assign(start=2),
        of_start(outcome="timeout", reason="too long", round=3).assign(start=3),
        repeats=[
            repeated(FOUR, {}, {"wall_s": 2.0}),
            *(repeated(FOUR, wall_s=8.0).assign(start=start) for start in (2, 3)),
        ],
        served=[
            *(two_requests(FOUR), two_requests(FOUR, repeat=1)),
            *(two_requests(FOUR).assign(start=start) for start in (2, 3)),
        ],
    )
    rows = table[table["cell_id"] == FOUR]
    told = ["start", "round", "position", "repeat", "outcome", "output_tokens_per_s", "block_size_effective"]
    assert rows[told].astype(object).where(rows[told].notna(), None).to_numpy().tolist() == [
        [1, 1, None, 0, "ok", 2.0, 32],
        [1, 1, None, 1, "ok", 4.0, 32],
        [2, 2, 3, 0, "ok", 1.0, 64],
        [3, 3, None, None, "timeout", None, 32],
    ]
    assert table.loc[table["cell_id"] == EIGHT, "start"].isna().all()


def test_what_was_parsed_is_in_its_column(tmp_path):
    table = of_study(tmp_path, of_start(), served=[two_requests(FOUR)])
    row = row_of(table, FOUR)
    expected = OF_START | {name: value for name, value in OF_REPEAT.items() if name != "start_unix_s"}
    assert {column: row[column] for column in expected} == expected
    assert (row["repeat"], row["wall_s"], row["started_at"]) == (0, 4.0, "2023-11-14T22:13:20Z")
    assert pd.isna(row_of(table, EIGHT)["effective"])
    # Where the engine prints no tokens of the cache, they are blocks times their size.
    assert row_of(of_study(tmp_path, of_start(kv_cache_tokens=None)), FOUR)["kv_cache_tokens"] == 3200


def test_rates_are_over_the_time_from_the_first_request_to_the_end_of_the_last(tmp_path):
    trace = pd.DataFrame({"cell_id": FOUR, "start": 1, "repeat": 0, "time_s": [0.0, 4.0], "power_w": [100.0, 100.0]})
    steps = pd.DataFrame({"cell_id": FOUR, "start": 1, "repeat": 0, "time_s": [0.0, 4.0], "waiting": [3, 0]})
    served = [two_requests(FOUR)]
    table = of_study(tmp_path, of_start(), served=served, steps=[steps], trace=[trace])
    row = row_of(table, FOUR)
    assert (row["num_requests"], row["prompt_tokens"], row["output_tokens"]) == (2, 30, 8)
    assert (row["output_tokens_per_s"], row["total_tokens_per_s"], row["requests_per_s"]) == (2.0, 9.5, 0.5)
    assert row["prefix_cache_hit_rate"] == 0.25
    assert (row["energy_j"], row["energy_j_per_output_token"]) == (400.0, 50.0)
    assert (row["running_peak"], row["running_mean"]) == (2, 1.75)
    assert row["waiting_peak"] == 3
    assert pd.isna(row["steady_output_tokens_per_s"])  # two requests never fill an engine that takes four
    # One at a time, though the engine takes two: four requests of a token in each of 4 s. The steady rate is that from
    # the second's first token (5 s) to the third's last (12 s).
    rows = [(10, 4, 0, 4.0 * i, 4.0 * i + 1, 4.0 * i + 4) for i in range(4)]
    table = of_study(
        tmp_path, started(STATIC), repeats=[repeated(STATIC, wall_s=16.0)], served=[requests(STATIC, *rows)]
    )
    assert row_of(table, STATIC)["steady_output_tokens_per_s"] == pytest.approx(8 / 7)


@pytest.mark.parametrize(("readings", "peak"), [([0, 0], None), ([0, 2], 2.0)])
def test_a_server_whose_readings_all_missed_its_requests_has_no_peak(tmp_path, readings, peak):
    served = two_requests(FOUR).assign(scheduled_s=None)
    steps = pd.DataFrame({"cell_id": FOUR, "start": 1, "repeat": 0, "time_s": [0.0, 4.0], "running": readings})
    steps = steps.assign(waiting=0, kv_cache_usage=0.0)
    row = row_of(of_study(tmp_path, of_start(), served=[served], steps=[steps]), FOUR)
    known = row["running_peak"], row["waiting_peak"], row["kv_cache_usage_peak"]
    assert [None if pd.isna(value) else value for value in known] == ([None] * 3 if peak is None else [peak, 0, 0.0])


def test_tokens_found_in_the_prefix_cache_are_a_share_of_all_tokens(tmp_path):
    row = row_of(of_study(tmp_path, of_start(), served=[two_requests(FOUR)]), FOUR)
    # 10 were found; the requests are said to have had 30 prompt tokens and 8 output tokens.
    assert row["prefix_cache_saved_pct"] == pytest.approx(100 * 10 / 38)


@pytest.mark.parametrize(
    ("changes", "outcome", "reason"),
    [
        ({"outcome": "timeout", "reason": "too long"}, "timeout", "too long"),
        ({"outcome": "engine_error", "damaged": "a file is cut"}, "engine_error", "a file is cut"),
        ({"outcome": "engine_error", "damaged": "a file is cut", "reason": "too long"}, "engine_error", "too long"),
        ({"damaged": "a file is cut"}, "invalid", "a file is cut"),
    ],
)
def test_a_cell_that_failed_or_lacks_evidence_has_one_row_and_no_measured_values(changes, outcome, reason, tmp_path):
    table = of_study(tmp_path, of_start(**changes), repeats=[repeated(FOUR, {}, {})], served=[two_requests(FOUR)])
    row = row_of(table, FOUR)
    assert (row["outcome"], row["reason"], row["block_size_effective"]) == (outcome, reason, 32)
    measured = ["repeat", "wall_s", "num_requests", "output_tokens", "output_tokens_per_s", "prefix_cache_hits"]
    assert pd.isna(pd.Series(row)[measured]).all()


def test_nothing_is_divided_by_zero(tmp_path):
    zeros = repeated(FOUR, wall_s=0.0, prefix_cache_queries=0.0)
    row = row_of(of_study(tmp_path, of_start(), repeats=[zeros], served=[two_requests(FOUR)]), FOUR)
    rates = ("output_tokens_per_s", "total_tokens_per_s", "requests_per_s", "prefix_cache_hit_rate")
    assert pd.isna([row[name] for name in rates]).all()


@pytest.mark.parametrize(
    ("samples", "counted_j", "energy_j"),
    [
        # 100 W by the counter over 4 s, whatever the samples say, and without a counter by power.
        ({"time_s": [2.0], "power_w": [7.0]}, 400.0, 400),
        ({"time_s": [0.1, 3.9], "power_w": [100.0, 100.0]}, None, 400),
        # The GPU was lost on the way, and a trace that has one sample.
        ({"time_s": [0.1, 2.9, 3.9], "power_w": [100.0, 100.0, None]}, None, None),
        ({"time_s": [2.0], "power_w": [100.0]}, None, None),
    ],
)
def test_energy_is_of_the_whole_repeat_or_not_known(samples, counted_j, energy_j, tmp_path):
    trace = pd.DataFrame({"cell_id": FOUR, "start": 1, "repeat": 0, **samples})
    repeats = [repeated(FOUR, counted_j=counted_j)]
    for served, tokens in ((two_requests(FOUR), 8), (requests(FOUR, (10, 0, 0, 0.0, 1.0, 1.0)), None)):
        row = row_of(of_study(tmp_path, of_start(), repeats=repeats, served=[served], trace=[trace]), FOUR)
        found = [row[name] for name in ("energy_j", "energy_j_per_output_token", "power_w_mean")]
        per_token = energy_j / tokens if energy_j and tokens else None
        expected = [energy_j, per_token, 100]
        assert [None if pd.isna(value) else value for value in found] == pytest.approx(expected)


def test_what_was_measured_under_another_definition_or_with_other_settings_is_told(tmp_path):
    table = of_study(
        tmp_path,
        of_start(definition_sha256=definition_of(FOUR)),
        of_start(EIGHT, definition_sha256="f" * 64, effective='{"max_num_seqs": 4}'),
        of_start(STATIC, outcome="engine_error", effective='{"batch_size": 9}'),
        started("cpu-all/vllm/of-no-sweep"),
        served=[two_requests(FOUR), two_requests(EIGHT)],
    ).set_index("cell_id")
    assert table["comparable"].to_dict() == {FOUR: True, EIGHT: False, STATIC: False, H200: False}
    assert table["not_as_asked"].dropna().to_dict() == {EIGHT: "max_num_seqs 4, not 8"}


@pytest.mark.parametrize("name", ["starts", "repeats", "requests", "steps", "trace"])
def test_a_parsed_table_with_a_column_missing_or_of_another_type_is_refused(tmp_path, name):
    columns = COLUMNS[name]
    table = pd.DataFrame([{"cell_id": "a", "start": 1}], columns=list(columns)).astype(columns)
    write_parsed(tmp_path / "h200", name, table)
    assert read_parsed(tmp_path, "h200", name).dtypes.to_dict() == table.dtypes.to_dict()
    two = [pd.concat([table, table])] if name in ("starts", "repeats", "requests") else []
    no_object = [table.assign(effective="[]")] if name == "starts" else []
    for wrong in (table.drop(columns="start"), table.assign(start="x"), *two, *no_object):
        write_parsed(tmp_path / "h200", name, wrong)
        with pytest.raises(InputError, match=f"{name}.parquet"):
            read_parsed(tmp_path, "h200", name)
