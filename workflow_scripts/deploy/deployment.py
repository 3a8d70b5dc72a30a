"""A deployment: what a study promises for a setting, and what a machine needs to keep that promise."""

import math
from dataclasses import dataclass

from workflow_scripts.cluster.site import Needs
from workflow_scripts.common.wording import plural
from workflow_scripts.engines.vllm_engines import SERVE_COMMAND
from workflow_scripts.study.promise import Promise

PORT = 8000
# Images of the release that was measured.
GPU_IMAGE, CPU_IMAGE = "vllm/vllm-openai:v{}", "public.ecr.aws/q9t5s3a7/vllm-cpu-release-repo:v{}"
# vLLM's imports take up to this on two cores; in a study they are done before the measured time begins.
IMPORT_S = 85
# A start may take this many times as long as measured: a slower disk, or other work on the machine.
START_FACTOR = 3
GIB = 2**30


@dataclass(frozen=True)
class Deployment:
    """A promise, with what a machine needs to keep it; `weights_bytes` is 0 if it is not known."""

    promise: Promise
    needs: Needs
    on_cpu: bool
    gpu_title: str
    weights_bytes: float
    scheduler_options: str

    @property
    def name(self) -> str:
        """A name that Kubernetes and Slurm allow. It begins with a letter and has letters, digits and hyphens only."""
        return "vllm-" + "".join(c if c.isalnum() else "-" for c in self.promise.served_model.lower()).strip("-")

    @property
    def of_hub(self) -> bool:
        """Whether the model is a repository, not a prepared folder."""
        return self.promise.serve.arguments.get("load-format") != "dummy"

    @property
    def image(self) -> str:
        return (CPU_IMAGE if self.on_cpu else GPU_IMAGE).format(self.promise.engine_release)

    @property
    def where(self) -> str:
        p = self.promise
        return f"study {p.study}, cell {p.cell_id}, {plural(p.starts, 'start')}"

    @property
    def start_limit_s(self) -> int:
        """How long a server may take to become healthy."""
        return math.ceil(START_FACTOR * (self.promise.start_s + IMPORT_S))

    @property
    def start_limit_source(self) -> str:
        return (
            f"{START_FACTOR} times the longest measured start ({self.promise.start_s:.1f} s, {self.where}) and"
            f" {IMPORT_S} s for imports, which the study did before that time began"
        )

    @property
    def host_kv_bytes(self) -> float:
        return self.promise.predicted_bytes.get("kv_cache", 0.0) if self.on_cpu else 0.0

    @property
    def host_memory_gib(self) -> int:
        return math.ceil((self.needs.memory_mb * 1e6 + self.host_kv_bytes) / GIB)

    @property
    def host_memory_source(self) -> str:
        why = "estimate of config/site.yaml's rules: libraries, engine processes and weights"
        return why + f"; and the predicted KV cache of {self.host_kv_bytes / GIB:.1f} GiB" * (self.host_kv_bytes > 0)

    @property
    def device_memory(self) -> str:
        parts = self.promise.predicted_bytes
        if self.on_cpu or not parts:
            return "no prediction of device memory"
        amounts = ", ".join(f"{name.replace('_', ' ')} {value / GIB:.1f}" for name, value in parts.items())
        return f"predicted per GPU: {sum(parts.values()) / GIB:.1f} GiB ({amounts})"

    @property
    def kv_bound(self) -> float | None:
        """The share of KV blocks in use above which a step may need more blocks than are free: one per sequence."""
        blocks = self.promise.effective.get("num_gpu_blocks")
        return None if not blocks else max(1 - self.promise.max_num_seqs / blocks, 0.0)

    @property
    def environment(self) -> dict[str, str]:
        return {**self.promise.serve.environment, **({"HF_HOME": "/models"} if self.of_hub else {})}

    @property
    def server_command(self) -> list[str]:
        # A model folder is mounted elsewhere; the model on the command line goes before that of the file.
        model = [] if self.of_hub else [f"/models/{self.promise.served_model}"]
        return [*SERVE_COMMAND, *model, "--config", "/deploy/vllm.yaml", "--port", str(PORT)]

    def head(self, what: str) -> str:
        """The first lines of each file: what it is, and from which measurement."""
        p, random = self.promise, "Random weights were measured; name a model and drop load-format to serve it."
        lines = [
            what,
            f"Study {p.study}, cell {p.cell_id}, measured with {p.engine_version}. {p.why}",
            *([] if self.of_hub else [random]),
            "`snakemake export` writes this file; docs/production.md explains how to use all of them.",
        ]
        return "\n".join(f"# {line}" for line in lines)
