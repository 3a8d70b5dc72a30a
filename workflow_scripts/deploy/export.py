"""Write files to serve a setting of a study and to watch whether it performs as measured.

    kvsweep export --study config/studies/demo.yaml --promise results/demo/deploy/promise.json \\
        --out results/demo/deploy

vllm.yaml is for `vllm serve --config`; require_key.py has the server ask for a key. compose.yaml, kubernetes.yaml and
serve.sbatch start the server in containers, on Kubernetes and on Slurm. prometheus.yml, alerts.yml and the folder
grafana/ watch it. docs/production.md explains how to use them.
"""

import ipaddress
import json
import math
import re
import shlex
from argparse import ArgumentTypeError, Namespace
from dataclasses import dataclass, replace
from pathlib import Path

import jinja2

from workflow_scripts.catalog.gpus_and_models import load_gpus, load_models
from workflow_scripts.cluster.site import SITE, Attempt, Needs, Site, job_resources, load_site, needs_of, sbatch_options
from workflow_scripts.common.checkout import own_or_of_checkout
from workflow_scripts.common.command import STUDY, command, option, out, positive
from workflow_scripts.common.files import write_text
from workflow_scripts.common.printable import printable
from workflow_scripts.common.wording import plural
from workflow_scripts.engines.vllm.knobs import SERVE_COMMAND
from workflow_scripts.physics.model_facts import ModelFactsError, read_model_facts
from workflow_scripts.study.definition import resolved_models
from workflow_scripts.study.grid import Cell, find_cell
from workflow_scripts.study.promise import Promise, PromiseError
from workflow_scripts.study.study import Study
from workflow_scripts.study.study_file import load_study

# One template per file of a deployment, under the file's name.
TEMPLATES = Path(__file__).with_name("templates")
FILES = sorted(path.relative_to(TEMPLATES).as_posix().removesuffix(".j2") for path in TEMPLATES.rglob("*.j2"))
# The user of the server in containers: one that neither the image nor the host has.
UID = 10001
# The current releases in November 2026, 3.13.4 (with long-term support) and 13.2.3, by the digests of all platforms.
PROMETHEUS_IMAGE = "prom/prometheus@sha256:87861b8cf91579109319ebc300f3f1060e6da9c05d6ae8ad15a20c879e84e32e"
GRAFANA_IMAGE = "grafana/grafana@sha256:b28bae15e219c998fb0e0424ed724930cc61b1f61fb404d47c862f9a23f9e572"
# How long a Slurm job serves; the measured cells say nothing about it.
JOB_MINUTES = 24 * 60
# Seconds between two looks at the health of a server.
PROBE_S = 5

PORT = 8000
EVERY_ADDRESS = "0.0.0.0"  # noqa: S104  # in a container, whose ports are published on purpose
GPU_IMAGE, CPU_IMAGE = "vllm/vllm-openai", "public.ecr.aws/q9t5s3a7/vllm-cpu-release-repo"
# vLLM's imports take up to this on two cores; in a study they are done before the measured time begins.
IMPORT_S = 85
# A start may take this many times as long as measured: a slower disk, or other work on the machine.
START_FACTOR = 3
GIB = 2**30
# Since then the ranks of an engine meet in a file.
RANKS_IN_A_FILE = (0, 32)
OPEN_PORT = (
    "This version also listens on every address of the host, at a random port without a key, where its ranks meet:"
    " outside of containers, keep others off all ports but the server's by a firewall."
)


@dataclass(frozen=True)
class Deployment:
    """What a study promises for a setting, and what a machine needs to keep that promise.

    `weights_bytes` is 0 if it is not known, as is `host_kv_bytes`, the KV cache in the host's memory. The server is
    watched at `target`: alerts and panels are over `window_s`, and its metrics are read every `scrape_s`.
    """

    promise: Promise
    needs: Needs
    on_cpu: bool
    gpu_title: str
    weights_bytes: float
    host_kv_bytes: float
    scheduler_options: str
    host: str = "127.0.0.1"
    named_image: str | None = None
    window_s: int = 60
    scrape_s: int = 5
    target: str = f"localhost:{PORT}"

    @property
    def patience_s(self) -> int:
        """How long a condition must hold: a quarter of the window, at least one scrape."""
        return max(self.window_s // 4, self.scrape_s)

    @property
    def name(self) -> str:
        """A name that Kubernetes and Slurm allow. It begins with a letter, has letters, digits and hyphens only, and
        has at most 63 of them."""
        return ("vllm-" + re.sub("[^a-z0-9]", "-", self.promise.served_model.lower()))[:63].strip("-")

    @property
    def of_hub(self) -> bool:
        """Whether the model is a repository, not a prepared folder."""
        return self.promise.serve.arguments.get("load-format") != "dummy"

    @property
    def repository(self) -> str:
        return CPU_IMAGE if self.on_cpu else GPU_IMAGE

    @property
    def image(self) -> str:
        """vLLM's image by its digest. Only a registry has the digest; until it is given, no container can start."""
        return self.named_image or f"{self.repository}@sha256:DIGEST"

    @property
    def where(self) -> str:
        p = self.promise
        return f"study {p.study}, cell {p.cell_id}, {plural(p.starts, 'start')}"

    @property
    def start_limit_s(self) -> int:
        """How long a server may take to become healthy."""
        return math.ceil(START_FACTOR * (self.promise.start_s + IMPORT_S))

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
    def host_memory_gib(self) -> int:
        return math.ceil((self.needs.memory_mb * 1e6 + self.host_kv_bytes) / GIB)

    @property
    def kv_bound(self) -> float | None:
        """The share of KV blocks in use above which a step may need more blocks than are free: one per sequence."""
        blocks = int(self.promise.effective.get("num_gpu_blocks") or 0)
        return None if not blocks else max(1 - self.promise.max_num_seqs / blocks, 0.0)

    @property
    def environment(self) -> dict[str, str]:
        """Variables in a container, where the user has no name and only /tmp and mounted folders can be written."""
        return {**self.promise.serve.environment, "PYTHONPATH": "/deploy", "HOME": "/tmp", "USER": "vllm"}

    @property
    def server_command(self) -> list[str]:
        # The command line goes before the file: a container has addresses of its own, and a model folder elsewhere.
        model = [] if self.of_hub else [f"/models/{self.promise.served_model}"]
        return [*SERVE_COMMAND, *model, "--config", "/deploy/vllm.yaml", "--host", EVERY_ADDRESS, "--port", str(PORT)]

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
    loads its model from elsewhere."""
    cell = find_cell(study, promise.cell_id)
    model, said = resolved_models(study)[cell.model], promise.serve.arguments
    if int(said.get("data-parallel-size") or 1) > 1:
        raise PromiseError(
            f"{promise.cell_id}: `vllm serve` lets engines of data_parallel_size meet at a port without a key, on every"
            " address of its host; pick a cell with one engine, and serve it several times"
        )
    loaded = (promise.serve.model, *(said.get(name) for name in ("revision", "load-format", "trust-remote-code")))
    random = None if model.load_format == "auto" else "dummy"
    expected: tuple[str | bool | None, ...] = (promise.serve.model, None, random, None)
    if model.load_format == "hub":
        expected = (model.hub_repo, model.revision, None, model.trust_remote_code or None)
    if loaded != expected:
        raise PromiseError(
            f"{promise.cell_id}: study {study.name} loads another model; `snakemake export` writes it anew"
        )
    gpu = load_gpus()[cell.gpu]
    try:
        weights = float(read_model_facts(load_models()[cell.model].config, promise.effective.get("dtype")).weight_bytes)
    except ModelFactsError:
        weights = 0.0  # not known
    options = _scheduler_options(cell, study, site)
    # Of a CPU; without this knob vLLM takes a share of the memory.
    host_kv_bytes = GIB * float(getattr(cell.knobs, "cpu_kv_cache_gib", None) or 0)
    return Deployment(promise, needs_of(cell), gpu.kind == "cpu", gpu.title, weights, host_kv_bytes, options)


def _scheduler_options(cell: Cell, study: Study, site: Site) -> str:
    if cell.gpu in site.gpus:
        resources = job_resources([cell], site, study.cell_time_limit_s, Attempt(1, 1))
        return sbatch_options(resources | {"runtime": JOB_MINUTES})
    needs = needs_of(cell)
    gpus = f" --gpus={needs.gpus}" if needs.gpus else ""
    return f"--cpus-per-task={needs.cores} --mem={needs.memory_mb}M --time={JOB_MINUTES}{gpus}"


def written(file: str, deployment: Deployment) -> str:
    """The content of one of `FILES`. In templates `json` writes a value so that YAML reads the same value, `compose` so
    that Compose does not replace anything in it. No value that a template inserts begins a new line."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=jinja2.select_autoescape(),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        keep_trailing_newline=True,
        finalize=lambda value: printable(value) if type(value) is str else value,
    )
    environment.filters |= {"json": json.dumps, "compose": lambda text: text.replace("$", "$$"), "quote": shlex.quote}
    constants = {name: value for name, value in globals().items() if name.isupper()}
    return environment.get_template(f"{file}.j2").render(constants, deployment=deployment, promise=deployment.promise)


def _address(text: str) -> str:
    try:
        return str(ipaddress.ip_address(text))
    except ValueError:
        raise ArgumentTypeError(f"{text!r} is no IP address, such as 127.0.0.1 or 0.0.0.0") from None


def _image(text: str) -> str:
    if not re.fullmatch(r"[a-z0-9][a-zA-Z0-9._:/-]*@sha256:[0-9a-f]{64}", text):
        raise ArgumentTypeError(f"{text!r} is no image by its digest, such as vllm/vllm-openai@sha256:...")
    return text


@command(
    "export",
    STUDY,
    option("--promise", type=Path, required=True, help="promise.json, which `kvsweep promise` writes"),
    option("--site", type=own_or_of_checkout, default=str(SITE), help="the site file, for the Slurm job (%(default)s)"),
    option("--window-s", type=positive, default=60, help="window of alerts and panels in seconds (%(default)s)"),
    option("--scrape-s", type=positive, default=5, help="scrape interval of Prometheus in seconds (%(default)s)"),
    option("--target", default=Deployment.target, help="where Prometheus finds the server (%(default)s)"),
    option("--host", type=_address, default=Deployment.host, help="address that the server listens on (%(default)s)"),
    option("--image", type=_image, help="vLLM's image by its digest, NAME@sha256:...; needed to start containers"),
    out("folder of the deployment"),
)
def main(args: Namespace) -> None:
    deployment = deployment_of(Promise.read(args.promise), load_study(args.study), load_site(args.site))
    watched = {"window_s": args.window_s, "scrape_s": args.scrape_s, "target": args.target}
    deployment = replace(deployment, host=args.host, named_image=args.image, **watched)
    for file in FILES:
        write_text(args.out / file, written(file, deployment))
