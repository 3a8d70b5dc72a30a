"""The schemas under config/schemas/ are those of the code, and accept what the code accepts."""

import json
from pathlib import Path

import jsonschema
import pytest
import yaml

from workflow_scripts.study.schemas import main

FOLDER = Path("config/schemas")


def test_the_files_are_what_the_code_generates(tmp_path):
    assert main(["--out", str(tmp_path)]) == 0
    written = {p.name: p.read_text(encoding="utf-8") for p in tmp_path.iterdir()}
    kept = {p.name: p.read_text(encoding="utf-8") for p in FOLDER.glob("*.json")}
    assert kept == written, "run: kvsweep write-schemas"


@pytest.mark.parametrize("study", sorted(Path("config/studies").glob("**/*.yaml")), ids=str)
def test_every_study_keeps_to_the_schema(study):
    schema = json.loads((FOLDER / "study.schema.json").read_text(encoding="utf-8"))
    content = yaml.safe_load(study.read_text(encoding="utf-8"))
    jsonschema.validate(content, schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**content, "repeat": 3}, schema)
