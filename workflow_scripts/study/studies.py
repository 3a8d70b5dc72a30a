"""List the studies of the checkout: what each asks, its cells, its cut for a CPU, and the sources that it re-tests.

    kvsweep studies

A cut below `config/studies/tiny/` has the same engines and knobs with models of 57M parameters.
"""

import textwrap
from argparse import Namespace
from pathlib import Path

from workflow_scripts.catalog.published import PUBLISHED, Published
from workflow_scripts.common.checkout import own_or_of_checkout
from workflow_scripts.common.command import command
from workflow_scripts.common.faults import InputError
from workflow_scripts.common.wording import plural
from workflow_scripts.study.grid import expand
from workflow_scripts.study.study_file import load_study

STUDIES = Path("config/studies")


def cells_of(path: Path) -> str:
    """How many cells a study file has; why they cannot be counted, such as a file that is not there."""
    try:
        return plural(len(expand(load_study(path))), "cell")
    except InputError as e:
        return str(e).splitlines()[0]


@command("studies")
def main(args: Namespace) -> None:
    folder, published = own_or_of_checkout(STUDIES), Published(PUBLISHED)
    for path in sorted(folder.glob("*.yaml")):
        cut = STUDIES / "tiny" / path.name
        has_cut = f"; cut for a CPU: {cut}" if (folder / "tiny" / path.name).exists() else ""
        print(f"{STUDIES / path.name} ({cells_of(path)}{has_cut})")
        study = load_study(path)
        sources = dict.fromkeys(published.claim(name).source for name in study.claims)
        of_sources = [f"Re-tests {'; '.join(sources)}."] if sources else []
        for text in (study.question, *of_sources):
            print(textwrap.fill(text, width=110, initial_indent="    ", subsequent_indent="    "))
