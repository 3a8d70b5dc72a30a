"""Write files to serve a setting of a study and to watch whether it performs as measured.

    kvsweep export --study config/studies/demo.yaml --tables results/demo/tables --out results/demo/deploy

`--pick` names the cell whose setting is served. Without it, that is the recommendation `best_within_latency`, if the
study has only one.
vllm.yaml is for `vllm serve --config`; require_key.py has the server ask for a key; serve.sbatch starts the server on
Slurm. prometheus.yml, alerts.yml and the folder grafana/ watch it. docs/production.md explains how to use them.
"""

import ipaddress
import json
import re
import shlex
from argparse import ArgumentTypeError, Namespace
from dataclasses import dataclass, replace
from pathlib import Path

import jinja2

from workflow_scripts.cluster.site import SITE, Attempt, Site, job_resources, load_site, needs_of, sbatch_options
from workflow_scripts.common.checkout import own_or_of_checkout
from workflow_scripts.common.command import RESULTS, STUDY, TABLES_OPTION, command, option, out, positive
from workflow_scripts.common.files import write_text
from workflow_scripts.common.printable import printable
from workflow_scripts.common.wording import plural
from workflow_scripts.deploy.promise import Promise, promise_of
from workflow_scripts.questions.serving.table import GROWTH_REQUESTS, GROWTH_SHARE  # noqa: F401  for the templates
from workflow_scripts.study.grid import Cell, find_cell
from workflow_scripts.study.paths import StudyPaths
from workflow_scripts.study.serve_command import PromiseError
from workflow_scripts.study.study import Study
from workflow_scripts.study.study_file import load_study
from workflow_scripts.tables.table_maker import TableInputs

# One template per file of a deployment, under the file's name.
TEMPLATES = Path(__file__).with_name("templates")
FILES = sorted(path.relative_to(TEMPLATES).as_posix().removesuffix(".j2") for path in TEMPLATES.rglob("*.j2"))
# How long a Slurm job serves; the measured cells say nothing about it.
JOB_MINUTES = 24 * 60
PORT = 8000
# Since then the ranks of an engine meet in a file.
RANKS_IN_A_FILE = (0, 32)
OPEN_PORT = (
    "This version also listens on every address of the host, at a random port without a key, where its ranks meet:"
    " keep others off all ports but the server's by a firewall."
)


@dataclass(frozen=True)
class Deployment:
    """What a study promises for a setting, and how to serve and watch it.

    The server is watched at `target`: alerts and panels are over `window_s`, and its metrics are read every `scrape_s`.
    """

    promise: Promise
    scheduler_options: str
    host: str = "127.0.0.1"
    window_s: int = 60
    scrape_s: int = 5
    target: str = f"localhost:{PORT}"

    @property
    def patience_s(self) -> int:
        """How long a condition must hold: a quarter of the window, at least one scrape."""
        return max(self.window_s // 4, self.scrape_s)

    @property
    def of_hub(self) -> bool:
        """Whether the model is a repository, not a prepared folder."""
        return "load-format" not in self.promise.serve.arguments

    @property
    def where(self) -> str:
        p = self.promise
        return f"study {p.study}, cell {p.cell_id}, {plural(p.starts, 'start')}"

    def measured(self, measure: str, limit: str = "", of_slo: str = "") -> dict[str, float | None]:
        """The lines of a measure in the dashboard, by name: what the study measured, between which values one further
        start is expected, and the study's `slo` under the name `limit`."""
        lines: dict[str, float | None] = {}
        if interval := self.promise.measured.get(measure):
            lines = {
                "study": interval.value,
                "study, after a restart at least": interval.low,
                "study, after a restart at most": interval.high,
            }
        return lines | ({limit: self.promise.slo.get(of_slo)} if limit else {})

    @property
    def kv_bound(self) -> float | None:
        """The share of KV blocks in use above which a step may need more blocks than are free: one per sequence."""
        blocks = int(self.promise.effective.get("num_gpu_blocks") or 0)
        return None if not blocks else max(1 - self.promise.max_num_seqs / blocks, 0.0)

    def head(self, what: str) -> str:
        """The first lines of each file: what it is, and from which measurement."""
        p, random = self.promise, "Random weights were measured; name a model and drop load-format to serve it."
        release = tuple(map(int, re.findall(r"\d+", p.engine_release)[:2]))
        lines = [
            what,
            f"Study {p.study}, cell {p.cell_id}, measured with {p.engine_version}.",
            *([] if self.of_hub else [random]),
            *([OPEN_PORT] if release < RANKS_IN_A_FILE else []),
            "`snakemake export` writes this file; docs/production.md explains how to use all of them.",
        ]
        return "\n".join(f"# {printable(line)}" for line in lines)


def deployment_of(promise: Promise, study: Study, site: Site) -> Deployment:
    """The promise with what its cell needs. Raises StudyError if the study has no such cell, and PromiseError if it
    would listen at a port without a key."""
    cell = find_cell(study, promise.cell_id)
    if int(promise.serve.arguments.get("data-parallel-size") or 1) > 1:
        raise PromiseError(
            f"{promise.cell_id}: `vllm serve` lets engines of data_parallel_size meet at a port without a key, on every"
            " address of its host; pick a cell with one engine, and serve it several times"
        )
    return Deployment(promise, _scheduler_options(cell, study, site))


def _scheduler_options(cell: Cell, study: Study, site: Site) -> str:
    if cell.gpu in site.gpus:
        resources = job_resources([cell], site, study.cell_time_limit_s, Attempt(1, 1))
        return sbatch_options(resources | {"runtime": JOB_MINUTES})
    needs = needs_of(cell)
    gpus = f" --gpus={needs.gpus}" if needs.gpus else ""
    return f"--cpus-per-task={needs.cores} --mem={needs.memory_mb}M --time={JOB_MINUTES}{gpus}"


def written(file: str, deployment: Deployment) -> str:
    """The content of one of `FILES`. In templates `json` writes a value so that YAML reads the same value. No value
    that a template inserts begins a new line."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=jinja2.select_autoescape(),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        keep_trailing_newline=True,
        finalize=lambda value: printable(value) if type(value) is str else value,
    )
    environment.filters |= {"json": json.dumps, "quote": shlex.quote}
    constants = {name: value for name, value in globals().items() if name.isupper()}
    return environment.get_template(f"{file}.j2").render(constants, deployment=deployment, promise=deployment.promise)


def _address(text: str) -> str:
    try:
        return str(ipaddress.ip_address(text))
    except ValueError:
        raise ArgumentTypeError(f"{text!r} is no IP address, such as 127.0.0.1 or 0.0.0.0") from None


@command(
    "export",
    STUDY,
    RESULTS,
    TABLES_OPTION,
    option(
        "--pick", help="the cell: gpu/engine/model/workload/knobs, or its knobs alone; without it, the recommended one"
    ),
    option("--site", type=own_or_of_checkout, default=str(SITE), help="the site file, for the Slurm job (%(default)s)"),
    option("--window-s", type=positive, default=60, help="window of alerts and panels in seconds (%(default)s)"),
    option("--scrape-s", type=positive, default=5, help="scrape interval of Prometheus in seconds (%(default)s)"),
    option("--target", default=Deployment.target, help="where Prometheus finds the server (%(default)s)"),
    option("--host", type=_address, default=Deployment.host, help="address that the server listens on (%(default)s)"),
    out("folder of the deployment"),
)
def main(args: Namespace) -> None:
    study = load_study(args.study)
    paths = StudyPaths(args.results, study.name)
    tables = TableInputs(study, paths, folder=args.tables)
    others = tables.table("serving"), tables.table("recommendations")
    promise = promise_of(study, paths, tables.cells, *others, args.pick or None)
    deployment = deployment_of(promise, study, load_site(args.site))
    where = {"host": args.host, "target": args.target}
    deployment = replace(deployment, window_s=args.window_s, scrape_s=args.scrape_s, **where)
    for file in FILES:
        write_text(args.out / file, written(file, deployment))
