"""What was run on what: counts of cells, devices and engines."""

from collections.abc import Iterator

import pandas as pd

from workflow_scripts.catalog.gpus_and_models import load_gpus, readable_models
from workflow_scripts.common.wording import listed, plural
from workflow_scripts.page.blocks import Block, Definitions, Fold, Table, Text, outcome_words, shown, table_of
from workflow_scripts.page.report import PLACE_HEADINGS, Report, Subject
from workflow_scripts.physics.model_facts import ModelFactsError, model_facts, read_config
from workflow_scripts.study.definition import resolved_models


def counts(report: Report) -> Iterator[Block]:
    grid, study = report.grid, report.study
    outcomes = grid["outcome"].value_counts()
    became = ", ".join(f"{count} {outcome_words(outcome)}" for outcome, count in outcomes.items())
    yield Text(
        f"{len(grid)} cells: {became}. A cell is one combination of device, engine, model, workload and engine "
        f"settings. The study asks for {plural(study.repeats, 'timed repeat')} of each, after a warm-up."
    )
    rows = [[f"{heading}s", ", ".join(dict.fromkeys(grid[column]))] for column, heading in PLACE_HEADINGS.items()]
    for knob in report.tables.knobs:
        values = [shown(value).replace(",", "") for value in sorted(grid[knob].dropna().unique())]
        rows.append([knob.removeprefix("knob_"), ", ".join(values)])
    yield Table("What the study combines", ["Axis", "Values"], rows, [False, False])


def devices(report: Report) -> Iterator[Block]:
    catalogue = load_gpus()
    known = {gpu: catalogue[gpu] for gpu in dict.fromkeys(report.grid["gpu"]) if gpu in catalogue}
    reported = report.tables.rows.dropna(subset="device_name").groupby("gpu")["device_name"].unique().map(sorted)
    rows = [
        {
            "Device": gpu,
            "memory_bandwidth_bytes_per_s": of.memory_bandwidth_bytes_per_s,
            "dense_flop_per_s": (of.dense_flop_per_s or {}).get("bf16"),
            "memory_bytes": of.usable_memory_bytes or of.memory_bytes,
            "tdp_w": of.tdp_w,
            "Description": of.title,
            "Reported name": ", ".join(reported.get(gpu, [])) or None,
        }
        for gpu, of in known.items()
    ]
    columns = {
        "Device": "",
        "memory_bandwidth_bytes_per_s": "Memory bandwidth",
        "dense_flop_per_s": "Dense matrix rate (BF16)",
        "memory_bytes": "Memory for programs",
        "tdp_w": "Power limit",
        **dict.fromkeys(("Description", "Reported name"), ""),
    }
    yield table_of(pd.DataFrame(rows), columns, "Devices, with data-sheet numbers")
    sources = [(gpu, "; ".join(dict.fromkeys(of.sources.values())) or "no data sheet") for gpu, of in known.items()]
    yield Fold("Sources of the data-sheet numbers", [Definitions(sources)])


def cautions(report: Report) -> Iterator[Block]:
    """What else a reader must know of the numbers: foreign code, random weights, unknown models."""
    models, cells = resolved_models(report.study), report.tables.rows
    if trusted := [f"{name} ({of.hub_repo} at {of.revision})" for name, of in models.items() if of.trust_remote_code]:
        yield Text(
            f"The study sets trust_remote_code, so engines ran Python code from the repositories of {listed(trusted)}. "
            "This pipeline does not check that code, and it could do anything that the measuring account may do."
        )
    if random := [name for name, of in models.items() if of.load_format == "dummy"]:
        yield Text(
            f"The weights of {listed(random)} are random; the work does not depend on their values, but at a power "
            "limit the speed may, slightly."
        )
    known = readable_models()
    for name in sorted(set(cells["model"]) & known.keys()):
        try:
            model_facts(read_config(known[name].config), known[name].fixed_dtype or "float32")
        except ModelFactsError as e:
            reason = str(e).split("; supported:")[0]
            yield Text(f"Limits, KV capacity and predictions of {name} are unknown: {reason}.")


SUBJECT = Subject(id="runs", title="What was run", tables=[counts, devices])
