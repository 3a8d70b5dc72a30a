"""The files are safe as they are written: what servers see of them, and values that come from others."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from unittest.mock import AsyncMock

import pytest

from tests.unit.deploy.promises import HOSTILE, deployment, on_cpu, promise, shapes
from workflow_scripts.common.faults import InputError
from workflow_scripts.common.files import write_text
from workflow_scripts.common.records import validated
from workflow_scripts.deploy.export import OPEN_PORT, written
from workflow_scripts.deploy.promise import Promise
from workflow_scripts.study.serve_command import PromiseError


def texts_in(content: Any) -> Iterator[tuple[Any, Any]]:
    """Where the texts of a record are: each holder with its key."""
    for key, value in content.items() if isinstance(content, dict) else ():
        yield from [(content, key)] if isinstance(value, str) else texts_in(value)


@pytest.mark.parametrize("hostile", HOSTILE, ids=["any", "printable"])
@pytest.mark.parametrize("of", [promise, on_cpu])
def test_texts_of_a_promise_stay_values(tmp_path, of, hostile):
    """Each in turn is refused, or the files hold what they hold with a harmless one."""
    write_text(tmp_path / "bin/vllm", "#!/bin/sh\n")
    (tmp_path / "bin/vllm").chmod(0o755)
    harmless, accepted = shapes(deployment(tmp_path, of())), []
    places = len(list(texts_in(of().model_dump(mode="json"))))
    for place in range(places):
        content = of().model_dump(mode="json")
        holder, key = list(texts_in(content))[place]
        holder[key] = hostile
        try:
            made = deployment(tmp_path, validated(Promise, content, "a promise"))
        except InputError:
            continue
        accepted.append(key)
        assert shapes(made) == harmless
        environment = {"PATH": f"{tmp_path}/bin:/usr/bin:/bin", "VLLM_API_KEY": "key"}
        words = ["/bin/bash", "-c", written("serve.sbatch", made)]
        subprocess.run(words, cwd=tmp_path, env=environment, check=True)
        assert not (tmp_path / "made").exists()
    assert ("engine_version" in accepted) == hostile.isprintable()
    assert not {"engine_release", "cell_id", "study", "served_model"} & set(accepted)


@pytest.mark.parametrize(
    "change",
    [
        {"middleware": "os.system"},
        {"host": "0.0.0.0"},
        {"a: 1\nb": 2},
        {"worker-cls": "os.system"},
        {"enable-prompt-embeds": True},
    ],
)
def test_only_settings_of_a_study_are_exported(change):
    content = promise().model_dump(mode="json")
    content["serve"]["arguments"] |= change
    with pytest.raises(InputError, match="no setting of a study"):
        validated(Promise, content, "a promise")


@pytest.mark.parametrize(
    ("path", "headers", "answers"),
    [
        ("/health", [], True),
        ("/metrics", [], True),
        ("/v1/completions", [(b"authorization", b"Bearer key")], True),
        ("/v1/completions", [], False),
        ("/invocations", [], False),
        ("/health/", [], False),
        ("/metrics/../invocations", [], False),
        ("/v1/models", [(b"authorization", b"Bearer other")], False),
        ("/v1/models", [(b"authorization", b"Bearer other"), (b"authorization", b"Bearer key")], False),
        ("/v1/models", [(b"x-api-key", b"key")], False),
    ],
)
def test_a_server_answers_only_with_its_key(tmp_path, monkeypatch, path, headers, answers):
    monkeypatch.setenv("VLLM_API_KEY", "key")
    guard: dict[str, Any] = {}
    exec(written("require_key.py", deployment(tmp_path, promise())), guard)
    for kind, refusal in (("http", [401, None]), ("websocket", [None])):
        app, send = AsyncMock(), AsyncMock()
        asyncio.run(guard["RequireKey"](app)({"type": kind, "path": path, "headers": headers}, None, send))
        assert app.await_count == answers
        assert [call.args[0].get("status") for call in send.await_args_list] == ([] if answers else refusal)


def test_a_server_without_a_key_does_not_start(tmp_path):
    write_text(tmp_path / "require_key.py", written("require_key.py", deployment(tmp_path, promise())))
    environment = {name: value for name, value in os.environ.items() if name != "VLLM_API_KEY"}
    for key in ({}, {"VLLM_API_KEY": ""}):
        done = subprocess.run([sys.executable, "-c", "import require_key"], cwd=tmp_path, env=environment | key)
        assert done.returncode == 1


def test_a_port_without_a_key_is_refused_or_named(tmp_path):
    of_two = promise()
    of_two.serve.arguments["data-parallel-size"] = 2
    with pytest.raises(PromiseError, match="a port without a key"):
        deployment(tmp_path, of_two)
    made = deployment(tmp_path, promise())
    for release, is_open in (("0.25.1", True), ("0.32.0", False)):
        of = replace(made, promise=promise(engine_release=release))
        assert {OPEN_PORT in written(file, of) for file in ("vllm.yaml", "serve.sbatch")} == {is_open}
