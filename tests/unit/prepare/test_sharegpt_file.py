"""The ShareGPT file, from a hub on localhost."""

import hashlib

import pytest

from tests.unit.prepare.fake_hub import serving
from workflow_scripts.prepare.sharegpt_file import DATASET, REVISION, main

NAME = "ShareGPT_V3_unfiltered_cleaned_split.json"
CONTENT = b'[{"conversations": []}]'
LENGTHS = {"median": 20.0, "sigma": 1.0, "maximum": 40}


@pytest.fixture
def fetched(tmp_path, write_study, command):
    def run(hub, **changes):
        fallback = {"kind": "synthetic", "num_prompts": 4, "prompt_tokens": LENGTHS, "output_tokens": LENGTHS}
        workload = {"kind": "sharegpt", "num_prompts": 4, "fallback": fallback}
        workload |= {"file": str(tmp_path / "put" / NAME), "sha256": hashlib.sha256(CONTENT).hexdigest()}
        return command(hub, "fetch-sharegpt", "--study", write_study(workload | changes))

    return run


@pytest.fixture
def hub():
    with serving() as start:
        yield start({NAME: CONTENT, "README.md": b"about"}, DATASET, REVISION, kind="datasets")


def test_the_file_is_fetched_once_and_then_only_checked(tmp_path, fetched, hub):
    done = fetched(hub)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "put" / NAME).read_bytes() == CONTENT
    assert [path.name for path in (tmp_path / "put").iterdir()] == [NAME]
    assert hub.downloaded == {NAME}
    offline = fetched(None)
    assert offline.returncode == 0, offline.stderr
    (tmp_path / "put" / NAME).write_bytes(b"[]")
    other = fetched(None)
    assert (other.returncode, "its sha256 is" in other.stderr) == (2, True)


def test_what_cannot_be_fetched_is_told_and_not_put_in_place(tmp_path, fetched, hub):
    done, other = fetched(None), fetched(hub, file=str(tmp_path / "other.json"))
    assert (done.returncode, other.returncode) == (2, 2)
    assert "the hub cannot be reached" in done.stderr
    assert f"the dataset {DATASET} has no file other.json" in other.stderr
    done = fetched(hub, sha256="0" * 64)
    assert done.returncode == 2
    assert f"{NAME} of {DATASET}: its sha256 is {hashlib.sha256(CONTENT).hexdigest()}" in done.stderr
    assert not (tmp_path / "put").exists()


def test_a_study_without_such_a_workload_is_refused(write_study):
    study = write_study({"kind": "fixed", "num_prompts": 4, "prompt_tokens": 8, "output_tokens": 4})
    assert main(["--study", str(study)]) == 2
