"""Drift of rounds, from the records of cells alone."""

from pathlib import Path

import numpy as np
import pytest

from workflow_scripts.questions.trust.drift import drift_table
from workflow_scripts.study.definition import cell_definition, definition_sha256, resolved_models
from workflow_scripts.study.grid import expand
from workflow_scripts.study.outcome import Outcome
from workflow_scripts.study.paths import StudyPaths
from workflow_scripts.study.study_file import load_study

STUDY = load_study(Path(__file__).parents[4] / "config/studies/demo.yaml")
CELLS = expand(STUDY)


def record(folder: Path, took_s: float, began_s: float, start: dict[str, object], **changes: object) -> None:
    definition = cell_definition(STUDY, CELLS[0], resolved_models(STUDY))
    at_s = began_s / 2  # somebody set the other clock
    repeats = [
        {"repeat": n, "start_unix_s": began_s, "start_monotonic_s": s, "end_monotonic_s": s + took_s + off}
        for n, (s, off) in enumerate(((at_s, -0.5), (at_s + 20, 0.5)))
    ]
    known = {
        "cell_id": CELLS[0].id,
        "outcome": "ok",
        "definition": definition.as_json(),
        "definition_sha256": definition_sha256(definition),
        "start": start,
        "repeats": repeats,
        "provenance": {"host": "here"},
    }
    folder.mkdir(parents=True)
    Outcome.model_validate(known | changes).write(folder / "outcome.json")


@pytest.mark.parametrize(("boots", "minutes"), [(("a", "b"), 10.0), (("a", "a"), 5.0)])
def test_the_first_cell_is_compared_with_itself_at_the_end_of_its_round(tmp_path, boots, minutes):
    paths = StudyPaths(tmp_path, STUDY.name)
    record(paths.start(CELLS[0], 2), 12.0, 600.0, {"start": 2, "round": 3, "position": 1, "boot_id": boots[0]})
    assert drift_table(CELLS, paths).empty
    again = {"start": 2, "round": 3, "position": 17, "again": True, "boot_id": boots[1]}
    record(paths.again(CELLS[0], 3), 10.0, 1200.0, again)
    (row,) = drift_table(CELLS, paths).to_dict("records")
    assert (row["cell_id"], row["round"], row["cells"], row["host"]) == (CELLS[0].id, 3, 17, "here")
    assert (row["minutes"], row["drift_pct"]) == (minutes, pytest.approx(20.0))
    assert list(paths.outcomes(CELLS[0])) == [2]  # it is no start of the cell


@pytest.mark.parametrize("changes", [{"outcome": "timeout", "repeats": []}, {"provenance": {"host": "there"}}])
def test_what_failed_or_ran_elsewhere_shows_no_drift(tmp_path, changes):
    paths = StudyPaths(tmp_path, STUDY.name)
    record(paths.start(CELLS[0], 1), 12.0, 600.0, {"round": 1, "position": 1})
    record(paths.again(CELLS[0], 1), 10.0, 1200.0, {"round": 1, "position": 17, "again": True}, **changes)
    assert drift_table(CELLS, paths).empty


@pytest.mark.parametrize(("slower", "places"), [(0.02, True), (0.0, True), (0.02, False)])
def test_a_later_place_in_a_session_is_told_from_slow_cells_and_slow_sessions(tmp_path, slower, places):
    paths, rng = StudyPaths(tmp_path, STUDY.name), np.random.default_rng(1)
    for session in range(4):
        # Without another order, the place is that of the cell.
        for place, number in enumerate(rng.permutation(3) if places else range(3), start=1):
            took_s = 5 * 1.5**number * 1.1**session * (1 + slower) ** place * np.exp(rng.normal(0, 0.001))
            start = {"start": session + 1, "session": f"s{session}", "place_in_session": place}
            cell_id = CELLS[number].id
            record(paths.start(CELLS[number], session + 1), took_s, 0.0, start, cell_id=cell_id)
    table = drift_table(CELLS, paths)
    if not places:
        assert table.empty
        return
    (row,) = table.to_dict("records")
    assert (row["gpu"], row["cells"], row["place_low_pct"] < 0 < row["place_high_pct"]) == ("cpu-all", 3, not slower)
    assert row["place_pct"] == pytest.approx(100 * (1 / (1 + slower) - 1), abs=0.2)
    assert row["place_low_pct"] < row["place_pct"] < row["place_high_pct"] < row["place_low_pct"] + 1
