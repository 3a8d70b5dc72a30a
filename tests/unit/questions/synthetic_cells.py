"""Cells made up for tests, as the frame of `tables.measurements`."""

import math

import pandas as pd

from workflow_scripts.engines.registry import load_engines
from workflow_scripts.tables.measurements import FRAME_COLUMNS, split
from workflow_scripts.tables.typed_tables import write_table

# What makes the cells of another place, which is compared with no cell of `cell`, and cells that do not count.
OTHER_PLACES = [{"gpu": "l40s"}, {"model": "opt-125m"}, {"workload": "long"}, {"study": "other"}]
OTHER_PLACES += [{"source": "measured elsewhere"}]
NOT_COUNTED = [{"outcome": "timeout"}, {"comparable": False}]


def cell(
    knobs,
    rates=(100.0,),
    *,
    gpu="h200",
    engine="vllm",
    model="llama-3.1-8b-instruct",
    workload="chat",
    study="try",
    source="measured",
    **columns,
):
    """Rows of one cell: a repeat for each of the output rates; a list among `columns` has a value for each."""
    settings = load_engines()[engine].knobs.model_validate(knobs)
    values = settings.set_values()
    rows = []
    for repeat, rate in enumerate(rates):
        of_repeat = {k: v[repeat] if isinstance(v, list) else v for k, v in columns.items()}
        row = {"cell_id": f"{gpu}/{engine}/{model}/{workload}/{settings.slug()}", "study": study, "sweeps": "only"}
        row |= {"gpu": gpu, "engine": engine, "model": model, "workload": workload, "knobs": settings.slug()}
        row |= {f"knob_{name}": value for name, value in values.items()}
        row |= {"dtype": "float32" if model.startswith("tiny") else None, "outcome": "ok", "comparable": True}
        row |= {"max_concurrency_allowed": settings.max_concurrency, "start": 1, "round": 1, "repeat": repeat}
        row |= {"num_requests": 64, "prompt_tokens": 3000, "output_tokens": 1000, "source": source}
        rows.append(row | {"output_tokens_per_s": rate, "total_tokens_per_s": 4 * rate} | of_repeat)
    return rows


def table(*cells):
    """The cells table of cells made by `cell`."""
    rows = pd.DataFrame([row for rows in cells for row in rows])
    knobs = [name for name in rows.columns if name.startswith("knob_")]
    rows = rows.reindex(columns=[*FRAME_COLUMNS, *knobs])
    rows[knobs] = rows[knobs].convert_dtypes()
    # What the schema would make of it, ten times as fast.
    return rows.astype({name: str(FRAME_COLUMNS[name].dtype) for name in FRAME_COLUMNS})


def starts_table(*cells):
    """The same with a start in a round of its own for each rate, instead of a repeat of one start."""
    rows = table(*cells)
    return rows.assign(start=rows["repeat"] + 1, round=rows["repeat"] + 1)


def around(mean, sd=0.001, turn=0):
    """Rates of three starts with this geometric mean and standard deviation of their logarithms.

    Two cells of one `turn` vary alike, so their ratio does not vary at all; of two turns its standard deviation is
    sqrt(3) sd.
    """
    rates = [mean * math.exp(-sd), mean, mean * math.exp(sd)]
    return rates[turn:] + rates[:turn]


def plan_of(cells, **columns):
    """A plan of these cells by calibrated costs; `columns` are what it predicts."""
    plan = cells.drop_duplicates("cell_id")[["cell_id", "gpu", "engine", "model", "workload", "knobs"]]
    unknown = ("cached_tokens", "prompt_tokens", "error_pct", "ttft_error_pct", "graph_tokens")
    known = dict.fromkeys(unknown, math.nan)
    known |= {"speed_source": "calibrated", "bound_by": "sequences", "running_peak": 16.0}
    known |= {"max_num_seqs": plan["knobs"].str.extract(r"seqs(\d+)", expand=False).astype(float)}
    return plan.assign(**(known | {"evicted_blocks": 3, "infeasible": None} | columns))


def only(found):
    """The one row of a table."""
    assert len(found) == 1
    return found.iloc[0]


def write_measurements(rows, folder):
    """Write the one frame to a folder as its three tables."""
    for name, frame in split(rows).items():
        write_table(frame, folder / f"{name}.parquet")
