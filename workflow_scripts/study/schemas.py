"""Write the JSON Schemas of files that people and other tools read and write.

    kvsweep write-schemas

They are generated from the models that check these files, and are kept in config/schemas/.
"""

import json
from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path

from pydantic import BaseModel

from workflow_scripts.catalog.gpus_and_models import CONFIG
from workflow_scripts.common.command import command, option
from workflow_scripts.common.files import write_text
from workflow_scripts.engines.registry import BUILT_IN
from workflow_scripts.study.outcome import Outcome
from workflow_scripts.study.study import Study

SCHEMAS: Mapping[str, type[BaseModel]] = {
    "study": Study,
    "outcome": Outcome,
    **{f"knobs.{engine.name}": engine.knobs for engine in BUILT_IN},
}


@command(
    "write-schemas", option("--out", type=Path, default=CONFIG / "schemas", help="folder to write to (%(default)s)")
)
def main(args: Namespace) -> None:
    for name, model in SCHEMAS.items():
        text = json.dumps(model.model_json_schema(), indent=2, sort_keys=True) + "\n"
        write_text(args.out / f"{name}.schema.json", text)
