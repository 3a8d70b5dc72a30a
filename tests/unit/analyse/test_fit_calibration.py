import numpy as np
import pandas as pd
import pytest

from workflow_scripts.analyse.fit_calibration import calibrate, choose, errors_pct, main, predicted_s, starting_point
from workflow_scripts.catalog.gpus_and_models import get_gpu
from workflow_scripts.physics.calibration import read_calibration
from workflow_scripts.physics.step_time import StepConstants, StepWork

GPU = get_gpu("l40s")
START = starting_point(GPU, "bfloat16")
TRUE = StepConstants(memory_bytes_per_s=600e9, flop_per_s=150e12, step_overhead_s=2.5e-3)


def works():
    """Cells that read, compute, and do little of either."""
    rng = np.random.default_rng(1)
    made = {}
    for i, (read, flops) in enumerate(
        [(15e9, 1e11), (15e9, 2e12), (16e9, 5e13), (1e8, 1e9), (20e9, 6e12), (1e9, 9e12)]
    ):
        n = 20
        made[f"cell-{i}"] = StepWork(
            steps=rng.integers(1, 40, n).astype(float),
            read_bytes=np.full(n, read),
            read_bytes_growth=np.full(n, 1e6),
            flops=flops * rng.uniform(0.8, 1.2, n),
            flops_growth=np.zeros(n),
        )
    return made


@pytest.mark.parametrize("overlap", [True, False])
def test_known_constants_are_recovered_from_few_cells(overlap):
    true = TRUE.model_copy(update={"overlap": overlap})
    cells = works()
    walls = {name: predicted_s(work, true) for name, work in cells.items()}
    start = START.model_copy(update={"overlap": overlap})
    constants, quality = calibrate(cells, walls, start, choose(cells, 3, start))
    assert constants.memory_bytes_per_s == pytest.approx(600e9, rel=0.02)
    assert constants.flop_per_s == pytest.approx(150e12, rel=0.02)
    assert constants.step_overhead_s == pytest.approx(2.5e-3, rel=0.05)
    assert (len(quality.fitted), len(quality.held_out)) == (3, 3)
    assert quality.p90_error_pct < 1.5


def test_cells_are_chosen_by_their_work_and_never_more_than_half_of_them():
    cells = works()
    assert len(choose(cells, 5, START)) == 3
    assert len(choose(dict(list(cells.items())[:3]), 5, START)) == 1
    # One cell that is all reading, one that is all computing and one that is all overhead tell the most.
    assert {"cell-3", "cell-5"} < set(choose(cells, 5, START))


def test_what_the_cells_do_not_tell_stays_as_it_would_be_without_them():
    cells = {name: work for name, work in works().items() if name in ("cell-2", "cell-5")}  # arithmetic binds
    walls = {name: predicted_s(work, TRUE) for name, work in cells.items()}
    constants, _ = calibrate(cells, walls, START, list(cells))
    assert constants.memory_bytes_per_s == pytest.approx(START.memory_bytes_per_s, rel=0.05)


def test_an_error_is_positive_where_the_prediction_is_too_fast():
    cells = works()
    walls = {name: 1.25 * predicted_s(work, TRUE) for name, work in cells.items()}
    assert set(errors_pct(cells, walls, TRUE).values()) == {25.0}


def write(tmp_path, gpu="l40s", models=("m",)):
    rows = [
        pd.DataFrame(vars(work)).assign(
            cell_id=name, gpu=gpu, engine="vllm", model=models[i % len(models)], dtype="bfloat16", output_tokens=1000
        )
        for i, (name, work) in enumerate(works().items())
    ]
    pd.concat(rows).to_parquet(tmp_path / "work.parquet")
    cells = [
        {
            "cell_id": name,
            "gpu": gpu,
            "engine": "vllm",
            "outcome": "ok" if name != "cell-4" else "invalid",
            "wall_s": predicted_s(work, TRUE) * factor,
            "device_name": "a card",
        }
        for name, work in works().items()
        for factor in (0.99, 1.0, 1.02)
    ]
    pd.DataFrame(cells).to_parquet(tmp_path / "cells.parquet")


def arguments(tmp_path, **changes):
    given = {
        "gpu": "l40s",
        "work": tmp_path / "work.parquet",
        "cells": tmp_path / "cells.parquet",
        "source": "made up",
        "out": tmp_path / "l40s.yaml",
        **changes,
    }
    return [part for name, value in given.items() for part in (f"--{name}", str(value))]


def test_the_command_writes_constants_with_their_quality(tmp_path, capsys):
    write(tmp_path)
    assert main(arguments(tmp_path)) == 0
    found = read_calibration(tmp_path / "l40s.yaml")
    engine = found.engines["vllm"]
    assert (found.gpu, found.device_name, found.source, engine.model) == ("l40s", "a card", "made up", "m")
    # A cell that is not ok is neither fitted nor held out.
    assert len(engine.quality.fitted) + len(engine.quality.held_out) == 5
    assert engine.repeat_sd == pytest.approx(np.std(np.log([0.99, 1, 1.02]), ddof=1), rel=1e-3)
    assert "l40s, vllm: fitted to 2 cells; on 3 others the error" in capsys.readouterr().out


def test_another_engine_of_the_same_device_stays_in_the_file(tmp_path):
    write(tmp_path)
    assert main(arguments(tmp_path)) == 0
    known = read_calibration(tmp_path / "l40s.yaml")
    known.model_copy(update={"engines": {"hf-static": known.engines["vllm"]}}).write(tmp_path / "l40s.yaml")
    assert main(arguments(tmp_path)) == 0
    assert set(read_calibration(tmp_path / "l40s.yaml").engines) == {"hf-static", "vllm"}


def test_an_engine_may_be_tested_with_the_constants_of_another(tmp_path, capsys):
    write(tmp_path)
    assert main(arguments(tmp_path)) == 0
    vllm = read_calibration(tmp_path / "l40s.yaml").engines["vllm"]
    for name in ("work", "cells"):
        table = pd.read_parquet(tmp_path / f"{name}.parquet")
        table = pd.concat([table, table.assign(engine="hf-static", cell_id="hf-" + table["cell_id"])])
        if name == "cells":
            table.loc[table["engine"].eq("hf-static"), "wall_s"] *= 1.5
        table.to_parquet(tmp_path / f"{name}.parquet")
    assert main(arguments(tmp_path, engine="hf-static", **{"constants-of": "vllm"})) == 0
    hf = read_calibration(tmp_path / "l40s.yaml").engines["hf-static"]
    assert (hf.constants, hf.constants_of, hf.quality.fitted) == (vllm.constants, "vllm", {})
    assert set(hf.quality.held_out) == {f"hf-cell-{i}" for i in (0, 1, 2, 3, 5)}
    assert hf.quality.median_error_pct == pytest.approx(50, abs=2)
    # New constants make that test void.
    assert main(arguments(tmp_path)) == 0
    assert set(read_calibration(tmp_path / "l40s.yaml").engines) == {"vllm"}


def test_the_cells_to_fit_to_can_be_named(tmp_path):
    write(tmp_path)
    assert main([*arguments(tmp_path), "--fit", "cell-0", "cell-5"]) == 0
    assert set(read_calibration(tmp_path / "l40s.yaml").engines["vllm"].quality.fitted) == {"cell-0", "cell-5"}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"gpu": "nothing"}, "unknown GPU 'nothing'"),
        ({"gpu": "h200"}, "holds no cell of h200; it has l40s"),
        ({"work": "absent.parquet"}, "absent.parquet: not the work of cells"),
        ({"cells": "absent.parquet"}, "absent.parquet: not a table of cells"),
        ({"engine": "hf-static"}, "0 cells of hf-static on l40s were measured; 2 are needed"),
        ({"constants-of": "hf-static"}, "--constants-of hf-static: "),
        ({"fit": "cell-9"}, "--fit cell-9: no such measured cell; there are cell-0"),
    ],
)
def test_bad_input_is_one_message(tmp_path, capsys, changes, said):
    write(tmp_path)
    assert main(arguments(tmp_path, **changes)) == 2
    assert said in capsys.readouterr().err


def test_constants_belong_to_one_model(tmp_path, capsys):
    write(tmp_path, models=("m", "n"))
    assert main(arguments(tmp_path)) == 2
    assert "cells of m, n; constants belong to one model" in capsys.readouterr().err


def test_a_published_sweep_is_as_good_as_cells(tmp_path):
    write(tmp_path)
    work = pd.read_parquet(tmp_path / "work.parquet")
    work["cell_id"] = "published/sweep/" + (work["cell_id"].str[-1].astype(int) + 1).astype(str)
    work.to_parquet(tmp_path / "work.parquet")
    rates = [1000 / predicted_s(cell, TRUE) for cell in works().values()]
    pd.DataFrame({"output_tokens_per_s": rates}).to_csv(tmp_path / "sweep.csv")
    options = arguments(tmp_path)
    options[options.index("--cells") : options.index("--cells") + 2] = ["--published", str(tmp_path / "sweep.csv")]
    assert main(options) == 0
    assert read_calibration(tmp_path / "l40s.yaml").engines["vllm"].quality.p90_error_pct < 1.5
