import re

import pandas as pd
import pytest

from tests.unit import made_studies
from tests.unit.predict.planned import study, sweep, write_study
from workflow_scripts.common.files import read_jsonl
from workflow_scripts.predict.plan import main, plan
from workflow_scripts.study.check import beyond_graphs
from workflow_scripts.study.grid import expand


def test_the_command_prints_a_summary_and_writes_the_tables(tmp_path, capsys):
    path = write_study(tmp_path)
    assert main(["--study", str(path), "--results", str(tmp_path / "results")]) == 0
    said = capsys.readouterr().out
    assert all(text in said for text in ("planned: 18 cells", "Infeasible: 6 cells", "GPU hours"))
    folder = tmp_path / "results" / "planned" / "plan"
    table = pd.read_parquet(folder / "plan.parquet")
    assert list(table["cell_id"]) == [cell.id for cell in expand(study(tmp_path))]
    assert table["infeasible"].notna().sum() == 6
    assert table["output_tokens_per_s"].notna().sum() == 12
    assert len(pd.read_csv(folder / "plan.csv")) == 18
    capacity = {record["cell_id"]: record["num_blocks"] for record in read_jsonl(folder / "capacity.jsonl")}
    assert [capacity[row.cell_id] for row in table.itertuples()] == table["num_blocks"].tolist()
    # It can be printed again without being made.
    kept = {file: file.stat().st_mtime_ns for file in folder.iterdir()}
    assert main(["--study", str(path), "--results", str(tmp_path / "results"), "--written"]) == 0
    assert capsys.readouterr().out == said
    assert {file: file.stat().st_mtime_ns for file in folder.iterdir()} == kept


@pytest.mark.parametrize(("version", "beyond"), [("0.30.0", True), ("0.31.0", False)])
def test_decoding_beyond_the_captured_sizes_is_told(version, beyond, tmp_path, capsys):
    # 98 requests of equal length: of the 32 steps, the first ones compute prompts, and then all decode.
    of_100 = {"block_size": 16, "max_num_seqs": 100, "enforce_eager": [False, True]}
    cell = sweep(gpu="h200", knobs=of_100)
    path = write_study(tmp_path, [cell], workloads={"even": made_studies.fixed(98, 16, 32)})
    assert main([f"--study={path}", f"--results={tmp_path}", f"--vllm-version={version}"]) == 0
    assert ("than a full CUDA graph" in capsys.readouterr().out) == beyond
    table = pd.read_parquet(tmp_path / "planned/plan/plan.parquet")
    captured, eager = table.sort_values("graph_sizes").itertuples()
    assert ("100" in captured.graph_sizes.split()) != beyond
    assert captured.beyond_graphs_steps_share == (captured.steps - 1) / captured.steps * beyond
    assert (0.5 < captured.beyond_graphs_time_share < 1) == beyond
    assert pd.isna([eager.graph_sizes, eager.beyond_graphs_steps_share, eager.beyond_graphs_time_share]).all()


def test_budgets_of_tokens_a_little_above_the_largest_graph_are_noted(tmp_path):
    budgets = {"block_size": 16, "max_num_seqs": 128, "max_num_batched_tokens": [256, 257, 511, 512]}
    of = study(tmp_path, sweeps=[sweep(knobs=budgets)])
    notes = list(beyond_graphs(of, list(expand(of))))
    assert [re.findall(r"max_num_batched_tokens (\d+) .* over (\d+) tokens", note) for note in notes] == [
        [("257", "256")],
        [("511", "256")],
    ]


def test_cells_of_a_session_share_a_start_and_a_warm_up_which_waits_for_no_arrivals(tmp_path):
    knobs = {"request_rate_per_s": [0.5, 5.0], "max_num_seqs": 16}
    of_server, costs = sweep(gpu="h200", engine="vllm-serve", knobs=knobs), ["start_s", "warmup_s", "stop_s"]
    shared, alone = (
        plan(planned, expand(planned), None)
        for planned in (study(tmp_path, sweeps=[of_server], share_starts=share) for share in (True, False))
    )
    assert alone["wall_s"].max() > 3 * alone["wall_s"].min()
    assert alone["warmup_s"].nunique() == 1
    assert (2 * shared[costs]).to_numpy() == pytest.approx(alone[costs].to_numpy())
    saved_s = alone[costs].sum(axis="columns") / 2
    assert shared["cell_s"].tolist() == pytest.approx((alone["cell_s"] - saved_s).tolist())
