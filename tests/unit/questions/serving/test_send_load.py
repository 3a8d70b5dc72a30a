"""To whom a load is sent, and how much of it."""

import time
from pathlib import Path

import pytest
import yaml

from tests.http_server import Handler, serving
from tests.unit.deploy.promises import CPU, STUDY
from workflow_scripts.common.faults import InputError
from workflow_scripts.common.files import write_jsonl
from workflow_scripts.questions.serving import send_load
from workflow_scripts.questions.serving.send_load import address_of, described, load_of
from workflow_scripts.study.definition import cell_definition, resolved_models, workload_key
from workflow_scripts.study.grid import expand
from workflow_scripts.study.paths import StudyPaths
from workflow_scripts.study.study import Study
from workflow_scripts.study.study_file import load_study


@pytest.fixture
def study(tmp_path):
    path = tmp_path / "promised.yaml"
    path.write_text(yaml.safe_dump(STUDY, sort_keys=False))
    return load_study(path)


def prepare(study: Study, folder: Path) -> StudyPaths:
    paths = StudyPaths(folder, study.name)
    (cell,) = (cell for cell in expand(study) if cell.id == CPU)
    file = paths.workload(cell.model, cell.workload, workload_key(cell_definition(study, cell, resolved_models(study))))
    file.parent.mkdir(parents=True)
    write_jsonl(file, ({"request_id": f"r{i}", "prompt_token_ids": [1, 2], "output_tokens": 3} for i in range(16)))
    return paths


def test_the_beginning_of_a_load_has_the_arrivals_of_the_whole(study, tmp_path):
    paths = StudyPaths(tmp_path, study.name)
    with pytest.raises(InputError, match=r"workload\.jsonl: .*`snakemake prepare`"):
        load_of(study, CPU, paths, 1)
    with pytest.raises(InputError, match=r"h200/vllm/x: no cell .*; allowed: h200/vllm-serve/"):
        load_of(study, "h200/vllm/x", paths, 1)
    paths = prepare(study, tmp_path)
    whole, some = (load_of(study, CPU, paths, count) for count in (16, 5))
    assert [request.request_id for request in some[0]] == ["r0", "r1", "r2", "r3", "r4"]
    assert some[1] == whole[1][:5]
    assert whole[1][-1] == pytest.approx(15 / 4)
    assert whole[2] is None


def test_a_cell_that_searches_its_load_has_none_to_send(tmp_path):
    *_, with_rate = STUDY["sweeps"]
    knobs = {name: value for name, value in with_rate["knobs"].items() if name != "request_rate_per_s"}
    searching = {**with_rate, "name": "search", "knobs": knobs | {"find": "highest_rate"}}
    for sweeps, allowed in (([with_rate, searching], CPU), ([searching], "none in this study")):
        (tmp_path / "searched.yaml").write_text(yaml.safe_dump({**STUDY, "sweeps": sweeps}))
        study = load_study(tmp_path / "searched.yaml")
        (cell,) = (cell.id for cell in expand(study) if cell.sweeps == ("search",))
        with pytest.raises(InputError, match=f"^{cell}: it searches .*; allowed: {allowed}$"):
            load_of(study, cell, StudyPaths(tmp_path, study.name), 1)


@pytest.mark.parametrize("url", ["http://10.0.0.7:8000", "https://example.org/v1", "http://localhost.example.org"])
def test_another_machine_must_be_allowed(url):
    with pytest.raises(InputError, match="add --elsewhere"):
        address_of(url, "NO_KEY", elsewhere=False)
    assert address_of(url, "NO_KEY", elsewhere=True).base_url == "/".join(url.split("/")[:3])


def test_the_key_comes_from_the_environment(monkeypatch):
    monkeypatch.setenv("A_KEY", "secret")
    address = address_of("http://localhost:1", "A_KEY", elsewhere=False)
    assert address.headers == {"Authorization": "Bearer secret"}


@pytest.mark.parametrize(
    ("url", "message"), [("localhost:8000", "no address of a server"), ("http://127.0.0.1:9", "127.0.0.1:9: ")]
)
def test_no_server_is_bad_input(url, message):
    with pytest.raises(InputError, match=message):
        described(address_of(url, "NO_KEY", elsewhere=False))


class Silent(Handler):
    """Answers no request."""

    def post(self) -> None:
        time.sleep(1)


def test_the_time_limit_counts_from_the_last_arrival(study, tmp_path, monkeypatch):
    load = load_of(study, CPU, prepare(study, tmp_path), 16)
    monkeypatch.setattr(send_load, "LIMIT_S", 0.25 - 15 / 4)
    with serving(Silent) as start, pytest.raises(InputError, match=r"no end within 0\.25 s"):
        send_load.send_load(address_of(start(), "NO_KEY", elsewhere=False), "model", load)
