"""Draw all figures of a study from its tables.

    kvsweep figures --study config/studies/demo.yaml --tables results/demo/tables --out results/demo/figures

A figure whose table is absent or empty is not drawn; `figures.json` says why.
"""

from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from workflow_scripts.common.command import STUDY, TABLES_OPTION, command, out
from workflow_scripts.common.files import write_json, write_text
from workflow_scripts.page.kit import use_style
from workflow_scripts.page.plot import write_plot
from workflow_scripts.page.report import Draw, caption_of
from workflow_scripts.questions.sections import SUBJECTS
from workflow_scripts.study.study_file import load_study
from workflow_scripts.tables.results import MissingError, Tables

_MANIFEST = "figures.json"
FIGURES: Mapping[str, Draw] = {draw.__name__: draw for subject in SUBJECTS for draw in subject.figures}


def draw_figures(tables: Tables, out: Path) -> dict[str, dict[str, Any]]:
    """Draw all figures with their captions; return what each shows, or under `missing` why it is not drawn."""
    use_style()
    drawn: dict[str, dict[str, Any]] = {}
    for name, draw in FIGURES.items():
        try:
            plot = draw(tables)
        except MissingError as e:
            drawn[name] = {"missing": str(e)}
            for old in out.glob(f"{name}.*"):
                old.unlink()
            continue
        marks = write_plot(plot, out, name)
        write_text(out / f"{name}.rst", f"{caption_of(draw)}\n")
        drawn[name] = plot.describe() | {"marks": marks}
    write_json(out / _MANIFEST, drawn)
    return drawn


@command(
    "figures",
    STUDY,
    TABLES_OPTION,
    out("folder for the figures"),
)
def main(args: Namespace) -> None:
    load_study(args.study)
    tables = Tables(args.tables)
    tables.need("cells")
    for name, figure in draw_figures(tables, args.out).items():
        print(f"{name}: {figure.get('missing', 'drawn')}")
