"""All figures of a study, drawn from its tables.

    python -m workflow_scripts.present.figures --study config/studies/demo.yaml --tables results/demo/tables \
        --parsed results/demo/parsed --out results/demo/figures

A figure whose table is absent or empty is not drawn; `figures.json` says why.
"""

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from workflow_scripts.common.command import run_command
from workflow_scripts.common.files import write_json, write_text
from workflow_scripts.present.plot import use_style, write_plot
from workflow_scripts.present.report_tables import MissingError, Tables
from workflow_scripts.present.subject import FigurePart
from workflow_scripts.present.subjects import SUBJECTS
from workflow_scripts.study.study_file import StudyError, load_study

MANIFEST = "figures.json"
FIGURES: Mapping[str, FigurePart] = {figure.name: figure for subject in SUBJECTS for figure in subject.figures}


def draw_figures(tables: Tables, out: Path) -> dict[str, dict[str, Any]]:
    """Draw all figures with their captions; return what each shows, or under `missing` why it is not drawn."""
    use_style()
    drawn: dict[str, dict[str, Any]] = {}
    for name, figure in FIGURES.items():
        try:
            plot = figure.plot(tables)
        except MissingError as e:
            drawn[name] = {"missing": str(e)}
            for old in out.glob(f"{name}.*"):
                old.unlink()
            continue
        write_plot(plot, out, name)
        write_text(out / f"{name}.rst", figure.caption.rst)
        drawn[name] = plot.describe()
    write_json(out / MANIFEST, drawn)
    return drawn


def main(argv: Sequence[str] | None = None) -> int:
    """Draw the figures of a study."""
    parser = argparse.ArgumentParser(
        description="Draw a study's figures from its tables: NAME.svg and NAME.png in the width of a page, "
        "NAME.column.svg in that of a column, the caption in NAME.rst, and figures.json, which describes each figure "
        "or says why it is missing.",
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
