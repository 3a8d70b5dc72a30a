"""Write the JSON Schemas of files that people and other tools read and write.

    kvsweep write-schemas

They are generated from the models that check these files, and are kept in config/schemas/.
"""

import json
from argparse import Namespace
from pathlib import Path

from workflow_scripts.catalog.gpus_and_models import CONFIG
from workflow_scripts.common.command import command, option
from workflow_scripts.common.files import write_text
from workflow_scripts.common.records import Record
from workflow_scripts.engines.registry import BUILT_IN
from workflow_scripts.study.outcome import Outcome
from workflow_scripts.study.study import Study


@command(
    "write-schemas", option("--out", type=Path, default=CONFIG / "schemas", help="folder to write to (%(default)s)")
)
def main(args: Namespace) -> None:
    knobs = [(f"knobs.{engine.name}", engine.knobs) for engine in BUILT_IN]
    models: list[tuple[str, type[Record]]] = [("study", Study), ("outcome", Outcome), *knobs]
    for name, model in models:
        text = json.dumps(model.model_json_schema(), indent=2, sort_keys=True) + "\n"
        write_text(args.out / f"{name}.schema.json", text)
