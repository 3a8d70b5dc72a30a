"""JSON Schemas of the files that people and other tools read and write, generated from the models that check them.

python -m workflow_scripts.study.schemas        writes config/schemas/*.schema.json
"""

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from pydantic import BaseModel

from workflow_scripts.catalog.gpus_and_models import CONFIG
from workflow_scripts.common.command import run_command
from workflow_scripts.common.files import write_text
from workflow_scripts.engines.knobs import ENGINES
from workflow_scripts.study.outcome import Outcome
from workflow_scripts.study.study_file import Study

SCHEMAS: Mapping[str, type[BaseModel]] = {
    "study": Study,
    "outcome": Outcome,
    **{f"knobs.{engine}": knobs for engine, knobs in ENGINES.items()},
}


def schema_texts() -> dict[str, str]:
    """Text of each schema by file name."""
    return {
        f"{name}.schema.json": json.dumps(model.model_json_schema(), indent=2, sort_keys=True) + "\n"
        for name, model in SCHEMAS.items()
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Write all schemas."""
    parser = argparse.ArgumentParser(description="Write the JSON Schemas of study files, knobs and outcomes.")
    parser.add_argument("--out", type=Path, default=CONFIG / "schemas", help="folder to write to (%(default)s)")
    args = parser.parse_args(argv)
    for name, text in schema_texts().items():
        write_text(args.out / name, text)
    return 0


if __name__ == "__main__":
    run_command(main)
