"""Runs that the key `runs` of the workflow names, on small logs; nothing is measured."""

import re
import subprocess
import sys

from tests.integration.conftest import CHECKOUT, snakemake_command
from tests.unit.made_studies import write_study
from tests.unit.parse.test_imported_runs import RUN, write_runs
from workflow_scripts.tables.measurements import read_measurements

RUNS = [
    RUN | {"knobs": {"max_num_seqs": 64}, "tokens_per_request": [220, 190], "results": "fast.txt"},
    RUN | {"knobs": {"max_num_seqs": 16}, "results": "serve.log", "rates": {"output_tokens_per_s": 650}},
    RUN | {"knobs": {"max_num_seqs": 256}, "results": "refused.txt"},
    RUN | {"engine": "hf-static", "knobs": {"batch_size": 1}, "results": "hf.txt"},
]
# A shell would split it, run a command in the background, and look for files.
HOSTILE = 'my "own" results;touch executed&*?[a]#~'


def test_the_documented_command_draws_the_report_of_imported_runs(tmp_path, environment):
    runs = write_runs(tmp_path, *RUNS)
    study = write_study(
        tmp_path, {"gpu": "h100-sxm", "model": RUN["model"], "knobs": {"max_num_seqs": 4}}, name="elsewhere"
    )
    results = tmp_path / HOSTILE
    command = snakemake_command(study, results, partial=True)
    command.insert(command.index("--"), f"runs={runs}")
    # In a folder of one's own; what lies there is no module of the commands.
    command[: command.index("snakemake") + 1] = [
        f"{sys.prefix}/bin/snakemake",
        "--snakefile",
        str(CHECKOUT / "Snakefile"),
    ]
    (tmp_path / "yaml.py").write_text("import pathlib; pathlib.Path('executed').touch()")
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "executed").exists()
    root = results / "elsewhere"
    cells = read_measurements(root / "tables")
    found = cells[cells["source"] == "imported"].set_index("knobs")
    assert found["output_tokens_per_s"].dropna().to_dict() == {"seqs64": 2888, "seqs16": 650, "static-batch1": 293.1}
    assert found.loc["seqs256", "outcome"] == "infeasible"
    assert cells["outcome"].value_counts().to_dict() == {"ok": 3, "infeasible": 1, "missing": 1}
    page = (root / "report.html").read_text(encoding="utf-8")
    table = page.partition("All rows: Device h100-sxm (imported)")[2].partition("</table>")[0]
    rows = re.findall(r'<td class="number">([^<]*)</td><td>([^<]*)</td></tr>', table)
    assert [(rate.split()[0], outcome) for rate, outcome in rows] == [("650", "–"), ("2,888", "–"), ("–", "infeasible")]
