"""A study of servers and two other engines that tests share, and the secrets of the user who measures it."""

import subprocess
import sys
import threading
from pathlib import Path
from typing import NamedTuple

import psutil
import yaml

from tests.unit.made_studies import fixed

CHECKOUT = Path(__file__).resolve().parents[2]
# Secrets of a user's environment; none of them may be in any file that is written.
SECRETS = {
    "HF_TOKEN": "hf_plantedTokenOfAUser0123456789",
    "HUGGING_FACE_HUB_TOKEN": "hf_anotherPlantedToken0123456789",
    "OPENAI_API_KEY": "sk-plantedKeyOfAUser0123456789",
    "VLLM_API_KEY": "plantedKeyOfARunningServer0123456789",
    "AWS_SECRET_ACCESS_KEY": "plantedAccessKeyOfAUser0123456789",
}
CHATS = {"kind": "prompts", "num_prompts": 3, "chat": True, "keep_answers": True}
SEVERAL = {"max_model_len": 512, "enforce_eager": True, "cpu_kv_cache_gib": 1, "block_size": 32}
DRAFTS = {"speculative_method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 3}


class Made(NamedTuple):
    """The folder of a study that was run, what was printed, and the addresses on which its processes listened."""

    folder: Path
    printed: str
    listened: set[tuple[str, str]]


def study(**changes: object) -> dict[str, object]:
    vllm = {"engine": "vllm-serve", "workload": "short"}
    sweeps = {
        "rates": {**vllm, "knobs": {"request_rate_per_s": [4, 1000]}},
        "users": {**vllm, "knobs": {"users": 4}},
        "engines": {**vllm, "knobs": {"users": 4, "data_parallel_size": 2}},
        "chat": {**vllm, "workload": "chat", "knobs": {"users": 2}},
        "reasoning": {**vllm, "workload": "reasoned", "knobs": {"users": 2, "reasoning_parser": "deepseek_r1"}},
        "talk": {**vllm, "workload": "talk", "knobs": {"users": 2}},
        "refused": {**vllm, "knobs": {"users": 4, "block_size": 16}},
        "hf": {**vllm, "engine": "openai", "knobs": {"endpoint": ["transformers-serve"], "users": 4}},
        "drafts": {"engine": "vllm", "workload": "drafts", "knobs": DRAFTS},
        "static": {"engine": "hf-static", "workload": "drafts", "knobs": {"batch_size": 2}},
    }
    return {
        "schema_version": 1,
        "name": "served",
        "question": "do servers run?",
        "repeats": 2,
        "cell_time_limit_s": 600,  # `transformers serve` takes ten times as long on cores that others use
        "server_start_limit_s": 100,
        "slo": {"ttft_s": 1.0, "tpot_s": 0.5},
        "workloads": {
            "short": {
                **{"kind": "synthetic", "num_prompts": 16, "keep_answers": True},
                "prompt_tokens": {"median": 16, "sigma": 0.5, "minimum": 4, "maximum": 48},
                "output_tokens": {"median": 8, "sigma": 0.5, "minimum": 2, "maximum": 16},
            },
            "chat": {
                **CHATS,
                "file": "tests/fixtures/prompts/chats.jsonl",
                "sha256": "d8b8afb1cb96dfa3f469b0799e559faa215705d270903efbdc373f14e8d7b4e5",
                "output_tokens": 8,
                "sampling": {"temperature": 0.8, "top_p": 0.9, "repetition_penalty": 1.1, "seed": 5},
            },
            "reasoned": {
                **CHATS,
                "file": "tests/fixtures/prompts/reasoned.jsonl",
                "sha256": "fe02acf1bb85612442bea85d2d2a2d209adf770ec77248a9eaeb17d8148d8a73",
                "output_tokens": 16,
                "sampling": {"temperature": 0.8, "seed": 5, "thinking_token_budget": 16},
            },
            "talk": fixed(*(8, 40, 8), kind="multi_turn", turns=2, answers="real", think_s=0.02),
            "drafts": fixed(4, 32, 24),
            "long": fixed(64, 16, 40),
        },
        "engine_defaults": {"vllm-serve": {**SEVERAL, "max_num_seqs": 4}, "vllm": {**SEVERAL, "max_num_seqs": 2}},
        "sweeps": [{"name": name, "gpu": "cpu-all", "model": "tiny-llama-57m", **of} for name, of in sweeps.items()],
        **changes,
    }


def write(folder: Path, content: dict[str, object]) -> Path:
    path = folder / "served.yaml"
    path.write_text(yaml.safe_dump(content, sort_keys=False), encoding="utf-8")
    return path


def made(folder: Path, content: dict[str, object], environment: dict[str, str], target: str) -> Made:
    command = [*(sys.executable, "-m", "snakemake", "--cores", "2", "--nolock", "--keep-going"), target, "--config"]
    command += [f"study={write(folder, content)}", f"results={folder / 'results'}"]
    with Listeners(environment["TMPDIR"]) as listeners:
        done = subprocess.run(command, cwd=CHECKOUT, env=environment, capture_output=True, text=True, timeout=1100)
    assert done.returncode == 0, done.stderr
    return Made(folder / "results" / "served", done.stdout + done.stderr, listeners.seen)


class Listeners:
    """Addresses on which any process with a TMPDIR in this one listens, looked at twice a second."""

    def __init__(self, tmpdir: str) -> None:
        self.seen: set[tuple[str, str]] = set()
        self._tmpdir, self._stop = tmpdir, threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> "Listeners":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._stop.wait(0.5):
            for process in psutil.process_iter():
                try:
                    if process.environ().get("TMPDIR", "").startswith(self._tmpdir):
                        for c in process.net_connections("inet"):
                            if c.status == psutil.CONN_LISTEN:
                                self.seen.add((c.laddr.ip, process.name()))
                except (psutil.Error, OSError):
                    continue
