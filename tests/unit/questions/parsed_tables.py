"""Parsed tables made up for tests, with the columns and types that the parse room writes."""

from io import BytesIO

import pandas as pd

from workflow_scripts.study.parsed_columns import REQUEST_COLUMNS, STEP_COLUMNS, table_columns

COLUMNS = table_columns()


def started(cell_id, /, outcome="ok", **columns):
    """The row of `starts` for a cell's first start."""
    row = {"cell_id": cell_id, "start": 1, "round": 1, "outcome": outcome} | columns
    return pd.DataFrame([row], columns=list(COLUMNS["starts"])).astype(COLUMNS["starts"])


def repeated(cell_id, *rows, **columns):
    """Rows of `repeats` for a cell's first start, by default one of 4 s."""
    known = [
        {"cell_id": cell_id, "start": 1, "repeat": i, "wall_s": 4.0} | columns | row
        for i, row in enumerate(rows or [{}])
    ]
    return pd.DataFrame(known, columns=list(COLUMNS["repeats"])).astype(COLUMNS["repeats"])


def requests(cell_id, *rows, repeat=0, **columns):
    """Requests of (prompt tokens, output tokens, cached prompt tokens[, scheduled, first token, last token])."""
    names = ("prompt_tokens", "output_tokens", "cached_prompt_tokens", "scheduled_s", "first_token_s", "last_token_s")
    records = [
        {"cell_id": cell_id, "start": 1, "repeat": repeat, "request_id": str(i), **dict(zip(names, row, strict=False))}
        for i, row in enumerate(rows)
    ]
    return pd.DataFrame(records, columns=list(REQUEST_COLUMNS)).assign(**columns).astype(REQUEST_COLUMNS)


def served(queued, first, last, sent=None, outputs=11, **columns):
    """Requests that a server answered at these times, in tokens of 0.05 s."""
    known = {"cell_id": "c", "start": 1, "repeat": 0, "request_id": [str(i) for i in range(len(queued))]}
    known |= {"queued_s": queued, "sent_s": queued if sent is None else sent, "first_token_s": first}
    known |= {"last_token_s": last, "prompt_tokens": 10, "output_tokens": outputs, "itl_s": [[0.05] * 10] * len(queued)}
    return pd.DataFrame(known | columns, columns=list(REQUEST_COLUMNS)).astype(REQUEST_COLUMNS)


def steps(cell_id, number, repeat=0):
    """So many steps of one sequence, a second each."""
    step = {"cell_id": cell_id, "start": 1, "repeat": repeat, "running": 1, "generation_tokens": 1}
    rows = [{**step, "time_s": i} for i in range(number)]
    return pd.DataFrame(rows, columns=list(STEP_COLUMNS)).astype(STEP_COLUMNS)


def write_parsed(folder, name, *frames):
    """Write a parsed table as the parse room does."""
    folder.mkdir(parents=True, exist_ok=True)
    buffer = BytesIO()
    pd.concat(frames, ignore_index=True).to_parquet(buffer, index=False)
    (folder / f"{name}.parquet").write_bytes(buffer.getvalue())
