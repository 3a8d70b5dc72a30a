"""What is kept of a cell when its engine fails in a phase that no real engine can be made to fail in."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from workflow_scripts.files import read_json, write_jsonl
from workflow_scripts.measure import run
from workflow_scripts.measure.engines import Request, RequestRecord


class Engine:
    """Does what is asked and cannot stop."""

    def start(self) -> dict[str, Any]:
        return {"block_size": 32}

    def warm_up(self, requests: Sequence[Request]) -> None:
        pass

    def run(self, requests: Sequence[Request]) -> list[RequestRecord]:
        return [
            RequestRecord(r.request_id, len(r.prompt_token_ids), r.output_tokens, 0.0, 0.0, 1.0, 2.0) for r in requests
        ]

    def reset(self) -> None:
        pass

    def metrics(self) -> dict[str, Any]:
        return {}

    def take_steps(self) -> list[dict[str, Any]]:
        return []

    def stop(self) -> None:
        raise RuntimeError("a worker does not answer")


def test_an_engine_that_fails_to_stop_loses_nothing_that_was_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("workload.jsonl", "warmup.jsonl"):
        write_jsonl(tmp_path / name, [{"request_id": "a", "prompt_token_ids": [1, 2], "output_tokens": 3}])
    monkeypatch.setattr(run, "make_engine", lambda *_: Engine())
    monkeypatch.setattr(run, "use_cores", lambda _: None)
    definition = {
        "gpu": "cpu-all",
        "engine": "vllm",
        "model": {"load_format": "dummy", "dtype": "float32"},
        "knobs": {},
        "repeats": 1,
    }
    evidence = tmp_path / "raw"
    evidence.mkdir()
    run.measure(
        run.Job(definition=definition, model_dir=tmp_path, workload=tmp_path / "workload.jsonl", evidence=evidence)
    )
    record = read_json(evidence / "measured.json")
    assert record["outcome"] == "ok"
    assert len(record["repeats"]) == 1
    assert "stop" in record["phases_s"]
    assert "RuntimeError: a worker does not answer" in capsys.readouterr().err
