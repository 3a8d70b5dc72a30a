"""All figures of a study, drawn from its tables.

    python -m workflow_scripts.present.figures --study config/studies/demo.yaml --tables results/demo/tables \
        --parsed results/demo/parsed --out results/demo/figures

A figure whose table is absent or empty is not drawn; `figures.json` says why.
"""

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from workflow_scripts.common.command import run_command
from workflow_scripts.common.files import write_json
from workflow_scripts.present import intervals, memory, outcomes, predicted, reserved, throughput, timelines
from workflow_scripts.present import serving_figures as serving
from workflow_scripts.present import workload_figures as workloads
from workflow_scripts.present.plot import Plot, use_style, write_plot
from workflow_scripts.present.report_tables import MissingError, Tables
from workflow_scripts.study.study_file import StudyError, load_study

MANIFEST = "figures.json"
FIGURES: Mapping[str, Callable[[Tables], Plot]] = {
    "workload_lengths": workloads.workload_lengths,
    "workload_arrivals": workloads.workload_arrivals,
    "output_by_max_num_seqs": throughput.output_by_max_num_seqs,
    "total_by_max_num_seqs": throughput.total_by_max_num_seqs,
    "output_by_block_size": throughput.output_by_block_size,
    "prefix_caching": intervals.prefix_caching,
    "engines": intervals.engines,
    "engine_decomposition": intervals.engine_decomposition,
    "device_ratios": intervals.device_ratios,
    "serving_latency": serving.serving_latency,
    "serving_throughput": serving.serving_throughput,
    "mbu_by_max_num_seqs": throughput.mbu_by_max_num_seqs,
    "mfu_by_max_num_seqs": throughput.mfu_by_max_num_seqs,
    "predicted_beside_measured": predicted.predicted_beside_measured,
    "predicted_by_max_num_seqs": predicted.predicted_by_max_num_seqs,
    "kv_capacity": memory.kv_capacity,
    "kv_reserved_and_used": reserved.kv_reserved_and_used,
    "waste_by_block_size": memory.waste_by_block_size,
    "memory_over_time": timelines.memory_over_time,
    "sequences_over_time": timelines.sequences_over_time,
    "kv_cache_over_time": timelines.kv_cache_over_time,
    "grid_outcomes": outcomes.grid_outcomes,
}


def draw_figures(tables: Tables, out: Path) -> dict[str, dict[str, Any]]:
    """Draw all figures into `out`; return what each figure shows, or under `missing` why it was not drawn."""
    use_style()
    drawn: dict[str, dict[str, Any]] = {}
    for name, make in FIGURES.items():
        try:
            plot = make(tables)
        except MissingError as e:
            drawn[name] = {"missing": str(e)}
            for old in out.glob(f"{name}.*"):
                old.unlink()
            continue
        write_plot(plot, out, name)
        drawn[name] = plot.describe()
    write_json(out / MANIFEST, drawn)
    return drawn


def main(argv: Sequence[str] | None = None) -> int:
    """Draw the figures of a study."""
    parser = argparse.ArgumentParser(
        description="Draw a study's figures from its tables: NAME.svg and NAME.png in the width of a page, "
        "NAME.column.svg in that of a column, and figures.json, which describes each figure or says why it is missing.",
        epilog="example: python -m workflow_scripts.present.figures --study config/studies/demo.yaml "
        "--tables results/demo/tables --parsed results/demo/parsed --out results/demo/figures",
    )
    parser.add_argument("--study", type=Path, required=True, help="the study's YAML file")
    parser.add_argument("--tables", type=Path, required=True, help="folder with cells.parquet and the other tables")
    parser.add_argument("--parsed", type=Path, help="folder with GPU/requests.parquet, trace.parquet and steps.parquet")
    parser.add_argument("--out", type=Path, required=True, help="folder of the figures")
    args = parser.parse_args(argv)
    try:
        load_study(args.study)
        tables = Tables(args.tables, args.parsed)
        tables.need("cells", "cell_id", "outcome")
    except (StudyError, MissingError) as e:
        print(f"present.figures: {e}", file=sys.stderr)
        return 2
    for name, figure in draw_figures(tables, args.out).items():
        print(f"{name}: {figure.get('missing', 'drawn')}")
    return 0


if __name__ == "__main__":
    run_command(main)
