import json
import math

import pandas as pd
import pytest

from tests.unit.made_rates import rates_record
from tests.unit.questions.synthetic_cells import NOT_COUNTED, OTHER_PLACES, around, cell, only, starts_table, table
from workflow_scripts.catalog.gpus_and_models import get_gpu
from workflow_scripts.common.faults import InputError
from workflow_scripts.device.device_record import DeviceRates
from workflow_scripts.questions.comparisons.table import SCHEMA as COMPARISONS
from workflow_scripts.questions.comparisons.table import comparison_tables
from workflow_scripts.questions.devices.table import SCHEMA, device_records, explain
from workflow_scripts.questions.limits.ceilings import as_measured
from workflow_scripts.questions.predictions.table import SCHEMA as PREDICTIONS
from workflow_scripts.tables.summary import Summaries

SEQS = {"max_num_seqs": 16}


def ratios(*cells, **known):
    """The comparisons of devices, with what explains those of the output rate."""
    return of_rows(starts_table(*cells), **known)


def of_rows(rows, **known):
    compared, explained = comparison_tables(Summaries(rows), 2.0, **known)
    found = COMPARISONS.validate(compared).query("kind == 'device' and metric == 'output_tokens_per_s'")
    return found.merge(SCHEMA.validate(explained), on=["a", "b"], how="left")


# --- which cells are compared


def test_devices_are_compared_on_the_same_settings_alone_the_faster_over_all_of_them_first():
    found = ratios(
        *(cell({"max_num_seqs": n}, around(rate)) for n, rate in ((1, 100), (4, 400), (16, 100))),
        *(cell({"max_num_seqs": n}, around(rate), gpu="l40s") for n, rate in ((1, 110), (16, 50), (64, 3200))),
    )
    assert found[["value_b", "value_a", "held"]].values.tolist() == [
        ["h200", "l40s", f"max_num_seqs={seqs}"] for seqs in (1, 16)
    ]
    assert found["ratio"].tolist() == pytest.approx([100 / 110, 2])


ENVIRONMENTS = [{"lock_sha256": "f00"}, {"processor": "another one"}]


@pytest.mark.parametrize("other", [*OTHER_PLACES[1:], *ENVIRONMENTS, *NOT_COUNTED, {"gpu": "h200"}])
def test_cells_that_differ_in_more_than_the_device_are_not(other):
    assert ratios(cell(SEQS), cell(SEQS, **({"gpu": "l40s"} | other))).empty


# --- the numbers


def test_ratios_of_the_data_sheets_beside_it():
    found = only(ratios(cell(SEQS, around(280)), cell(SEQS, around(100), gpu="l40s")))
    assert found["bandwidth_ratio"] == pytest.approx(4.8e12 / 864e9)
    assert found["flop_ratio"] == pytest.approx(989.5 / 362.05)
    assert found[["measured_bandwidth_ratio", "measured_flop_ratio", "kv_tokens_ratio"]].isna().all()
    assert (found["explanation"], found["nearest"]) == ("flop", "flop")
    assert found["nearest_difference_pct"] == pytest.approx(100 * (989.5 / 362.05 / 2.8 - 1))


def test_the_more_ratios_are_explained_the_more_each_must_show():
    def found(settings):
        cells = [
            cell({"max_num_seqs": n}, around(rate, 0.09), gpu=gpu)
            for n in range(1, settings + 1)
            for gpu, rate in (("h200", 989.5), ("l40s", 362.05))
        ]
        return set(ratios(*cells)["explanation"])

    assert (found(1), found(9)) == ({"flop"}, {"none"})


def test_quantised_weights_and_unknown_names_have_no_flop_ratio():
    awq = {"quantization": "awq"}
    found = ratios(cell(awq), cell(awq, gpu="l40s"), cell(SEQS), cell(SEQS, gpu="l40s")).set_index("held")
    expected = {"quantization=awq": math.nan, "max_num_seqs=16": 989.5 / 362.05}
    assert found["flop_ratio"].to_dict() == pytest.approx(expected, nan_ok=True)
    assert found["bandwidth_ratio"].notna().all()
    strange = only(ratios(cell(SEQS, model="mine"), cell(SEQS, gpu="l40s", model="mine")))
    assert (strange["bandwidth_ratio"], math.isnan(strange["flop_ratio"])) == (pytest.approx(4800 / 864), True)
    elsewhere = only(ratios(cell(SEQS, gpu="abc"), cell(SEQS, gpu="l40s")))
    assert elsewhere[["bandwidth_ratio", "explanation"]].isna().all()
    # The rate is that of the model's dtype.
    of_float16 = only(ratios(cell(SEQS, model="opt-125m"), cell(SEQS, gpu="rtx4090", model="opt-125m")))
    assert of_float16["flop_ratio"] == pytest.approx(989.5 / 330.3)


def test_measured_rates_beside_it():
    slow = {"gpu": "l40s", "read_bytes_per_s": 8e11, "copy_bytes_per_s": 6e11, "matmul_flop_per_s": {"bf16": 2e14}}
    rates = {name: DeviceRates.model_validate(record(**of)) for name, of in (("h200", {}), ("l40s", slow))}
    cells = cell(SEQS, around(5)), cell(SEQS, around(1), gpu="l40s")
    found = only(ratios(*cells, rates=rates))
    assert (found["measured_bandwidth_ratio"], found["measured_flop_ratio"]) == pytest.approx((5, 3.5))
    assert found["explanation"] == "measured_bandwidth"
    one = only(ratios(*cells, rates={"h200": rates["h200"]}))
    assert math.isnan(one["measured_bandwidth_ratio"])


@pytest.mark.parametrize(
    ("of_a", "of_b", "explanation"), [(0, 0, "none"), (3, 0, "kv_capacity"), (0, 3, "kv_capacity")]
)
def test_capacity_explains_only_where_it_bound(of_a, of_b, explanation):
    a = cell(SEQS, around(2), kv_cache_tokens=2000, preemptions=of_a, running_peak=16)
    b = cell(SEQS, around(1), gpu="l40s", kv_cache_tokens=1000, preemptions=of_b, running_peak=16)
    found = only(ratios(a, b))
    assert (found["kv_tokens_ratio"], found["explanation"]) == (2, explanation)
    assert found[["bound_by_a", "bound_by_b"]].tolist() == ["kv_blocks" if n else "sequences" for n in (of_b, of_a)]


# --- measured rates of devices


def record(**changes):
    rates = {"read_bytes_per_s": 4e12, "copy_bytes_per_s": 3e12}
    return rates_record(2e12, 7e14, "bf16", **{"gpu": "h200", "threads": None, **rates} | changes)


def test_records_of_devices_stand_in_for_data_sheets(tmp_path):
    (tmp_path / "h200.json").write_text(json.dumps(record()))
    (tmp_path / "unknown.json").write_text("{}")
    found = device_records(tmp_path)
    assert list(found) == ["h200"]
    h200 = as_measured(get_gpu("h200"), found["h200"])
    assert h200.memory_bandwidth_bytes_per_s == 4e12
    assert (h200.peak_flop_per_s("bfloat16"), h200.peak_flop_per_s("float16")) == (7e14, None)
    assert device_records(tmp_path / "nowhere") == {}


def test_a_damaged_record_is_named(tmp_path):
    (tmp_path / "h200.json").write_text(json.dumps(record(matmul_flop_per_s={"bf16": "fast"})))
    with pytest.raises(InputError, match=r"^.*h200\.json: matmul_flop_per_s\.bf16: [^\n]+$"):
        device_records(tmp_path)


SMALL_CACHE = {"last_level_cache_bytes": 2**25}
BUSY = {"host_load": {"cpu_steal_pct": 40.0, "cpu_others_pct": 8.0}}
ALIKE = {"copy_bytes_per_s": 12.6e9, "read_bytes_per_s": 12.6e9}


def of_processors(folder, ratio, one, both):
    """The row of two processor devices with a last-level cache of 480 MiB, of which `both` reads and computes twice."""
    for gpu, scale, changes in (("cpu-1core", 1, one), ("cpu-all", 2, both)):
        rates = {"copy_bytes_per_s": scale * 12e9, "read_bytes_per_s": scale * 12e9, "threads": scale, "gpu": gpu}
        rates |= {"matmul_flop_per_s": {"fp32": 1.94e11 if scale > 1 else 1e11}, "last_level_cache_bytes": 480 * 2**20}
        rates |= {"read_bytes_per_s_by_size": {2**22: 80e9}} | changes
        (folder / f"{gpu}.json").write_text(json.dumps(record(**rates)))
    cpu = {"model": "tiny-llama-57m", "processor": "Intel Xeon: avx2"}
    pair = cell(SEQS, around(ratio), gpu="cpu-all", **cpu), cell(SEQS, around(1), gpu="cpu-1core", **cpu)
    return only(ratios(*pair, rates=device_records(folder)))


# An Intel Xeon with 480 MiB: ratios of 1.41 to 1.61 where memory gives 2.00 and matrix products 1.94.
CACHED = {2**22: 80e9, 2**26: 40e9}


@pytest.mark.parametrize(
    ("ratio", "one", "both", "why", "explanation", "cache_ratio"),
    [
        (1.5, CACHED, {2**22: 160e9, 2**26: 90e9}, "cached weights", "none", 2.25),
        (1.5, CACHED, {2**22: 90e9, 2**26: 60e9}, "cached weights", "measured_cache", 1.5),
        # A model beyond the cache is explained by memory, unless the machine was loaded or the bandwidths are alike.
        (1.95, SMALL_CACHE, SMALL_CACHE | BUSY, "disturbed", None, math.nan),
        (1.95, SMALL_CACHE, SMALL_CACHE | ALIKE, "equal bandwidths", "measured_flop", math.nan),
        (2, SMALL_CACHE, SMALL_CACHE, None, "measured_bandwidth, measured_flop", math.nan),
    ],
)
def test_a_processor_whose_cache_holds_the_model_cannot_show_what_memory_does(
    tmp_path, ratio, one, both, why, explanation, cache_ratio
):
    is_cached = why == "cached weights"
    changes = [{"read_bytes_per_s_by_size": of} if is_cached else of for of in (one, both)]
    row = of_processors(tmp_path, ratio, *changes)
    assert [None if pd.isna(row[name]) else row[name] for name in ("explanation", "cannot_show")] == [explanation, why]
    assert row["measured_cache_ratio"] == pytest.approx(cache_ratio, nan_ok=True)
    assert row["measured_bandwidth_ratio"] == 2 or not is_cached


# --- what explains a ratio

NAN = math.nan
TWO = {"bandwidth": 2.0, "flop": 4.0}


@pytest.mark.parametrize(
    ("observed", "candidates", "shown", "compatible", "nearest"),
    [
        ((2.1, 1.9, 2.19), TWO, "bandwidth", "", "bandwidth"),
        ((2.1, 2.05, 2.19), TWO, "bandwidth", "", "bandwidth"),  # near enough, although not equal
        ((2.1, 1.81, 2.21), TWO, "", "bandwidth", "bandwidth"),
        ((3.0, 1.5, 4.5), TWO, "", "bandwidth, flop", "flop"),
        ((3.0, 2.5, 3.5), TWO, "", "", "flop"),
        ((2.0, 1.9, 2.1), TWO | {"kv": 2.05}, "bandwidth, kv", "", "bandwidth"),
        ((2.0, 1.9, 2.1), {"bandwidth": 2.0, "flop": 1.9}, "bandwidth", "flop", "bandwidth"),
        ((2.0, 1.0, 2.1), {"bandwidth": 2.15, "flop": 1.1}, "", "flop", "flop"),
        ((2.0, 1.9, 2.1), {"bandwidth": NAN, "flop": 2.0}, "flop", "", "flop"),
        ((2.0, 1.9, 2.1), {"bandwidth": NAN}, "", "", None),
        ((2.0, NAN, NAN), TWO, "", "", "bandwidth"),
    ],
)
def test_what_an_interval_shows_excludes_or_leaves_open(observed, candidates, shown, compatible, nearest):
    found = explain(*observed, candidates)
    assert found["explanation"] == (shown or (nearest and "none"))
    assert found["compatible_with"] == (compatible or None)
    assert found["nearest"] == nearest


# --- what was predicted

CELLS = table(
    cell({"max_num_seqs": 64}, [200, 200], power_cap_share=[0.5, 0.7], sm_clock_mhz_min=[1500, 1140]),
    cell({"max_num_seqs": 64}, [100, 100], gpu="l40s"),
)


def predicted(*rows):
    """A predictions table of (rate by its own calibration, rate by the other's) of the two cells."""
    frame = pd.DataFrame(rows, columns=["predicted", "scaled_output_tokens_per_s"])
    frame = frame.assign(cell_id=CELLS["cell_id"].unique(), quantity="output_tokens_per_s")
    return PREDICTIONS.validate(frame.reindex(columns=list(PREDICTIONS.columns)))


def expected(predictions):
    return only(of_rows(CELLS, predictions=predictions))


def test_the_predicted_ratio_is_from_the_calibration_of_one_device_at_a_time():
    row = expected(predicted((180, 200), (120, 100)))
    assert row["predicted_ratio"] == pytest.approx(math.sqrt(180 / 100 * 200 / 120))
    without_a_second = expected(predicted((180, None), (120, None)))
    assert pd.isna(without_a_second["predicted_ratio"])


@pytest.mark.parametrize(("scale", "explanation"), [(2.0, "predicted"), (2.5, "none")])
def test_the_predicted_ratio_explains_like_any_other(scale, explanation):
    """Measured are 2 (1.9 to 2.1) of h200 over l40s, with bandwidths of 5.56 and FLOP rates of 2.73."""
    of_each = ((200, "h200"), (100, "l40s"))
    cells = (cell({"max_num_seqs": 64}, around(rate, 0.01), gpu=gpu) for rate, gpu in of_each)
    row = only(ratios(*cells, predictions=predicted((100 * scale, 100 * scale), (100, 100))))
    assert row["predicted_ratio"] == pytest.approx(scale)
    assert row["explanation"] == explanation
