"""Draw the report of an archive with this code; no code of the archive runs.

    kvsweep report --archive kept.zip --out theirs

The study file and the evidence are unpacked into a new folder, and tables, figures and page are made from them there:
`theirs/results/STUDY/report.html`. `snakemake archive_study` writes such archives.
"""

import importlib.util
import subprocess
import sys
from argparse import Namespace
from pathlib import Path

from workflow_scripts.common.checkout import CHECKOUT
from workflow_scripts.common.command import command, option, out
from workflow_scripts.common.faults import InputError
from workflow_scripts.common.files import unpack_zip
from workflow_scripts.study.archive import STUDY_FILE
from workflow_scripts.study.study_file import load_study

# What the archive's own code made is left out: it is made again.
EVIDENCE = rf"{STUDY_FILE}|results/[^/]+/(cells|measured|prepared|rounds)/.*[^/]"


@command(
    "report",
    option("--archive", type=Path, required=True, help="a zip file that `kvsweep archive` wrote"),
    out("a new folder"),
)
def main(args: Namespace) -> int:
    if importlib.util.find_spec("snakemake") is None:
        raise ModuleNotFoundError(name="snakemake")
    if not unpack_zip(args.archive, EVIDENCE, args.out):
        raise InputError(f"{args.archive}: no {STUDY_FILE} and no results; not an archive of a study")
    folder = args.out.resolve()
    study, results = folder / STUDY_FILE, folder / "results"
    name = load_study(study).name
    words = ("--snakefile", CHECKOUT / "Snakefile", "--directory", folder, "--cores", "all")
    made = subprocess.run(
        [sys.executable, "-m", "snakemake", *words, "--config", "partial=1", f"study={study}", f"results={results}"],
        check=False,
    )
    if made.returncode == 0:
        print(f"The report: {results / name / 'report.html'}")
    return made.returncode
