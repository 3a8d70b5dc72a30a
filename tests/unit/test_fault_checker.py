"""The checker of the campaigns of faults finds each thing that it looks for."""

import hashlib
import json
import os
import time

import pytest
from filelock import FileLock

from tests.faults import checker
from tests.faults.checker import Wanted, Watch
from tests.faults.kinds import KINDS, drawn
from tests.processes import wait_for
from workflow_scripts.catalog.gpus_and_models import load_gpus
from workflow_scripts.common.files import sha256_of, write_json, write_text
from workflow_scripts.device.device_lock import SCOPE, device_lock

CELL = "gpu/hf-static/model/short/static-batch2"
WANTED = Wanted("hf-static", {"batch_size": 2}, repeats=1, requests=2, output_tokens=8)
DEFINITION = {"engine": "hf-static", "knobs": {"batch_size": 2}}


def test_a_seed_gives_the_same_faults_and_each_kind_comes_before_any_comes_twice():
    assert [*drawn(7, 100, KINDS)] == [*drawn(7, 100, KINDS)] != [*drawn(8, 100, KINDS)]
    assert {fault.kind for fault in drawn(7, len(KINDS), KINDS)} == set(KINDS)


@pytest.fixture
def study(tmp_path):
    """A study whose only cell has ended well."""
    folder = tmp_path / "cells" / CELL
    write_text(folder / "measure.log", "")
    write_text(folder / "raw/requests.jsonl", '{"output_tokens": 8}\n' * 2)
    write_outcome(folder)
    write_json(tmp_path / "batches/gpu/ended.json", {CELL: sha256_of(folder / "outcome.json")})
    return tmp_path


def write_outcome(folder, **changes):
    known = {"cell_id": CELL, "outcome": "ok", "reason": None, "definition": DEFINITION}
    known["definition_sha256"] = hashlib.sha256(json.dumps(DEFINITION, sort_keys=True).encode()).hexdigest()
    known["repeats"] = [{"repeat": 0, "start_monotonic_s": 1.0, "end_monotonic_s": 2.0}]
    write_json(folder / "outcome.json", {**known, **changes})


def found_in(study):
    lists = checker.faults_of_lists(study, [CELL])
    scratch = checker.faults_of_scratch([study])
    return len([*checker.faults_of_cell(study / "cells" / CELL, CELL, WANTED), *lists, *scratch])


@pytest.mark.parametrize(
    ("changes", "count"),
    [
        ({}, 0),
        ({"outcome": "timeout"}, 2),
        ({"definition": {**DEFINITION, "knobs": {"batch_size": 4}}}, 3),
        ({"cell_id": "another"}, 2),
        ({"repeats": []}, 2),
        ({"repeats": [{"start_monotonic_s": 1.0, "end_monotonic_s": -119.0}]}, 2),
    ],
)
def test_a_wrong_outcome_is_found_and_that_it_is_not_the_one_in_the_list(study, changes, count):
    write_outcome(study / "cells" / CELL, **changes)
    assert found_in(study) == count


@pytest.mark.parametrize("name", ["raw.partial/engine.log", "raw/.steps.jsonl.ab12cd34", "raw/scratch/model"])
def test_what_was_left_is_found(study, name):
    write_text(study / "cells" / CELL / name, "")
    assert found_in(study) == 2


def test_a_cut_file_of_evidence_and_a_lost_outcome_are_found(study):
    folder = study / "cells" / CELL
    (folder / "raw/requests.jsonl").write_text('{"output_tokens": 8}\n')
    assert found_in(study) == 1
    (folder / "outcome.json").unlink()
    assert found_in(study) == 1


@pytest.mark.parametrize(("span", "count"), [((1.2, 1.8), 1), ((0.5, 1.5), 0), ((1.5, 2.5), 0), ((3, 4), 0)])
def test_a_repeat_that_counts_though_its_processes_were_stopped_in_it_is_found(study, span, count):
    assert len([*checker.faults_of_suspension(study / "cells" / CELL, CELL, [span])]) == count


def test_a_held_lock_is_found(tmp_path):
    with FileLock(tmp_path / "cell.lock"):
        assert len([*checker.faults_of_locks([tmp_path])]) == 1
    assert [*checker.faults_of_locks([tmp_path])] == []
    with device_lock(load_gpus()["cpu-all"]):
        assert len([*checker.faults_of_device_locks([os.environ[SCOPE]])]) == 1
    assert [*checker.faults_of_device_locks([os.environ[SCOPE]])] == []


@pytest.mark.parametrize(
    ("ended", "why", "count"), [(1, "missing: killed\n", 0), (2, "missing: killed\n", 1), (1, "", 1)]
)
def test_the_status_must_count_the_cells_and_name_a_missing_one_below_a_reason(ended, why, count):
    said = f"{ended} of 2 cells have ended.\n{why}    b  b/measure.log\n"
    assert len([*checker.faults_of_status(said, {"a"}, {"a"}, {"a", "b"})]) == count


def test_measuring_again_and_changed_evidence_are_seen_and_lost_time_is_counted(study):
    folder = study / "cells" / CELL
    watch = Watch(study / "cells", [CELL])
    try:
        wait_for(lambda: CELL in watch.hashes, what="the outcome")
        (folder / "raw/requests.jsonl").write_text("{}\n")
        wait_for(lambda: len(watch.faults) == 1, what="the changed evidence")
        write_text(folder / "raw.partial/engine.log", "")
        wait_for(lambda: len(watch.faults) == 2, what="the second measurement")
        time.sleep(3 * checker.LOOK_S)
    finally:
        watch.stop()
    assert watch.device_s(counts=False) >= checker.LOOK_S
    assert watch.device_s(counts=True) == 0
