"""Servers in one figure: what tells them apart, and what of them needs a warning."""

from pathlib import Path

import pandas as pd
import pytest

from tests.unit.present.conftest import Results
from workflow_scripts.present import serving
from workflow_scripts.present.plot import use_style, write_plot
from workflow_scripts.present.tables import MissingError, Tables


def write(folder: Path, *servers: tuple[str, str | None, dict[str, object], list[float]]) -> Tables:
    """Tables of servers, each with its engine, endpoint, knobs and the numbers of users that it was measured with."""
    cells, rows = [], []
    for i, (engine, endpoint, knobs, loads) in enumerate(servers):
        for users in loads:
            place = {"gpu": "h200", "model": "m", "workload": "w", "cell_id": f"{i}/{users}", "repeat": 0}
            settings = {f"knob_{name}": value for name, value in {**knobs, "users": users}.items()}
            cells.append({**place, **settings, "engine": engine, "outcome": "ok", "comparable": True})
            load = {"request_rate_per_s": None, "ramp_to_per_s": None, "users": users, "saturated": None}
            numbers = dict.fromkeys((*serving.LATENCIES, *serving.RATES), users)
            server = {"engine": engine, "endpoint": endpoint, "source": "measured"}
            rows.append({**place, **server, **load, **numbers})
    pd.DataFrame(cells).to_parquet(folder / "cells.parquet")
    numbers_of = {"request_rate_per_s": float, "ramp_to_per_s": float, "saturated": "boolean"}
    pd.DataFrame(rows).astype(numbers_of).to_parquet(folder / "serving.parquet")
    return Tables(folder)


def labels(plot: serving.Plot) -> list[str]:
    return [str(handle.get_label()) for handle in plot.handles]


def test_servers_are_told_apart_by_their_names_and_by_what_differs_among_their_own_settings(tmp_path: Path) -> None:
    tables = write(
        tmp_path,
        ("vllm-serve", None, {"block_size": 16, "max_num_seqs": 8}, [1.0, 4.0]),
        ("vllm-serve", None, {"block_size": 32, "max_num_seqs": 8}, [1.0, 4.0]),
        ("openai", "tgi", {}, [1.0, 4.0]),
    )
    assert labels(serving.serving_latency(tables))[:3] == [
        "vllm-serve, block size 16",
        "vllm-serve, block size 32",
        "tgi",
    ]
    assert "users" in serving.serving_throughput(tables).panels[0].title


@pytest.mark.filterwarnings("error")
def test_a_figure_fits_a_column_also_where_nothing_is_saturated(tmp_path: Path) -> None:
    tables = write(tmp_path, ("vllm-serve", None, {}, [1.0, 4.0]), ("openai", "tgi", {}, [1.0, 4.0]))
    use_style()
    write_plot(serving.serving_latency(tables), tmp_path, "latency")
    assert (tmp_path / "latency.column.svg").exists()


def test_a_single_load_is_no_curve(tmp_path: Path) -> None:
    tables = write(tmp_path, ("openai", "tgi", {}, [4.0]))
    with pytest.raises(MissingError, match="no server was measured at two request rates or numbers of users"):
        serving.serving_latency(tables)


def test_more_than_six_settings_are_some_of_them_and_it_is_said(tmp_path: Path) -> None:
    many = [("vllm-serve", None, {"block_size": 16 * i}, [1.0, 4.0]) for i in range(1, 9)]
    plot = serving.serving_latency(write(tmp_path, *many))
    assert sum("block size" in label for label in labels(plot)) == 6
    assert "6 settings a panel have a line; the table holds all" in plot.notes


def test_the_page_warns_of_saturated_loads_first(results: Results) -> None:
    found = results.html
    at = found.index("3 of 3 loads; the table below holds all.")
    section = found[found.index('id="serving"') : at]
    assert section.index("saturated") < section.index("limited by load")
    assert "16 requests/s arrived" in section
