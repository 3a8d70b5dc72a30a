"""Small studies made up for tests, and outcomes of their cells."""

from pathlib import Path
from typing import Any

import yaml

from workflow_scripts.study.definition import cell_definition, json_sha256, resolved_models
from workflow_scripts.study.grid import Cell, expand
from workflow_scripts.study.outcome import Outcome
from workflow_scripts.study.paths import StudyPaths
from workflow_scripts.study.rounds import RoundPlan
from workflow_scripts.study.study import Study
from workflow_scripts.study.study_file import load_study


def fixed(num_prompts: int = 4, prompt_tokens: int = 16, output_tokens: int = 8, **changes: Any) -> dict[str, Any]:
    """A workload of equal requests, or with another `kind` of ones that share text."""
    sizes = {"num_prompts": num_prompts, "prompt_tokens": prompt_tokens, "output_tokens": output_tokens}
    return {"kind": "fixed", **sizes, **changes}


def study_content(*sweeps: dict[str, Any], name: str = "try", **changes: Any) -> dict[str, Any]:
    """What a study file holds. A sweep is of the first workload, with vLLM on an H200, unless it says otherwise."""
    workloads = changes.pop("workloads", {"load": fixed()})
    known = {"name": "all", "gpu": "h200", "engine": "vllm", "model": "opt-125m", "workload": next(iter(workloads))}
    content = {"schema_version": 1, "name": name, "question": "?", "workloads": workloads}
    return {**content, "sweeps": [known | sweep for sweep in sweeps or ({},)], **changes}


def made_study(*sweeps: dict[str, Any], **changes: Any) -> Study:
    return Study.model_validate(study_content(*sweeps, **changes))


def write_study(folder: Path, *sweeps: dict[str, Any], **changes: Any) -> Path:
    content = study_content(*sweeps, **changes)
    path = folder / f"{content['name']}.yaml"
    path.write_text(yaml.safe_dump(content), encoding="utf-8")
    return path


class MadeStudy:
    """Such a study with its file, its cells by id, and the places of its results."""

    def __init__(self, folder: Path, *sweeps: dict[str, Any], **changes: Any) -> None:
        self.file = write_study(folder, *sweeps, **changes)
        self.study = load_study(self.file)
        self.cells = {cell.id: cell for cell in expand(self.study)}
        self.paths = StudyPaths(folder / "results", self.study.name)
        # With which a command reads it.
        self.options = ["--study", str(self.file), "--results", str(self.paths.results)]

    def end(self, cell: Cell, start: int = 1, **changes: Any) -> None:
        end_cell(self.study, self.paths, cell, start, **changes)


def end_cell(study: Study, paths: StudyPaths, cell: Cell, number: int = 1, /, **changes: Any) -> None:
    """Write the outcome of a start of a cell, which ended ok unless `changes` say otherwise."""
    definition = changes.pop("definition", cell_definition(study, cell, resolved_models(study)).as_json())
    known = {"cell_id": cell.id, "outcome": "ok", "definition": definition}
    known["definition_sha256"] = json_sha256({name: value for name, value in definition.items() if name != "repeats"})
    known["provenance"] = {"ended_at": "1970-01-01T00:00:00+00:00", **changes.pop("provenance", {})}
    Outcome.model_validate(known | changes).write(paths.outcome(cell, number))


def round_plan(number: int, *starts: tuple[str, int], **changes: Any) -> RoundPlan:
    """A decision on a round with these starts of cells, which has not ended the study unless `changes` say so."""
    known = {"round": number, "starts": [list(start) for start in starts], "undecided": [], "not_decidable": []}
    known |= {"decided": 0, "spent_s": 0.0, "left_s": 0.0, "ended": None}
    return RoundPlan.model_validate(known | changes)
