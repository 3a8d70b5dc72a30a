"""What the engines were asked: the workloads, and the lengths of the requests that really ran."""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any

import pandas as pd

from workflow_scripts.common.files import read_json
from workflow_scripts.page.blocks import Absent, Block, shown, table_of
from workflow_scripts.page.report import Report, Subject
from workflow_scripts.study.paths import MANIFEST
from workflow_scripts.tables.results import MissingError, Tables
from workflow_scripts.workloads.sampling import in_words
from workflow_scripts.workloads.workload_kinds import LengthDistribution, TextWorkload

LENGTHS = ("prompt_tokens", "output_tokens")


def _workloads(tables: Tables) -> Iterator[tuple[str, pd.DataFrame]]:
    """Each workload with its requests; several times if models' tokenizers give its texts different lengths."""
    cells = tables.measured.drop_duplicates("cell_id").sort_values("num_requests", ascending=False, kind="stable")
    largest = cells.drop_duplicates(["model", "workload"])
    requests = _requests(tables, largest["cell_id"]).merge(largest[["cell_id", "model", "workload"]], on="cell_id")
    for workload, rows in requests.groupby("workload", sort=False):
        versions = {
            of_model[list(LENGTHS)].to_numpy(dtype=int).tobytes(): (model, of_model)
            for model, of_model in rows.groupby("model", sort=False)
        }
        for model, of_model in versions.values():
            yield str(workload) if len(versions) == 1 else f"{workload} · {model}", of_model


def _requests(tables: Tables, cell_ids: Iterable[str]) -> pd.DataFrame:
    """Requests of the first repeat of each cell's first start."""
    columns = ["cell_id", "start", "repeat", *LENGTHS, "queued_s", "last_token_s"]
    rows = tables.facts("requests", cell_ids, columns)
    return rows[rows["repeat"] == rows.groupby("cell_id")["repeat"].transform("min")]


def workloads(report: Report) -> Iterator[Block]:
    rows = []
    paths = sorted(report.prepared.glob(f"workloads/**/{MANIFEST}"))
    made = sorted(map(read_json, paths), key=lambda manifest: -int(manifest["num_requests"]))
    served = dict(list(report.tables.rows.dropna(subset="num_requests").groupby("workload")["num_requests"]))
    requests: dict[str, pd.DataFrame] = {}
    with suppress(MissingError):
        for title, of_model in _workloads(report.tables):
            requests.setdefault(title.partition(" · ")[0], of_model)
    for name, workload in report.study.workloads.items():
        manifest = next((m for m in made if m["workload"] == name), None)
        asked = workload.num_prompts if manifest is None else manifest["num_requests"]
        counts = served.get(name, [asked])
        prompt = getattr(workload, "prompt_tokens", None)
        if prefix := getattr(workload, "prefix_tokens", 0):
            prompt = f"{prefix:,} shared and {prompt}"
        rows.append(
            {
                "Workload": name,
                "prompt_tokens": _length(manifest, requests.get(name), "prompt_tokens", prompt),
                "output_tokens": _length(
                    manifest, requests.get(name), "output_tokens", getattr(workload, "output_tokens", None)
                ),
                "Requested kind": workload.kind
                + (", chat" if isinstance(workload, TextWorkload) and workload.chat else ""),
                "Actual kind": manifest and manifest["kind"],
                "Made from": manifest and manifest.get("source"),
                "Requests per cell": " to ".join(dict.fromkeys([shown(min(counts)), shown(max(counts))])),
                "Requests that share text": manifest and manifest["requests_with_prefix"],
                "Sampling": in_words(workload.sampling),
            }
        )
    yield table_of(pd.DataFrame(rows), None, "Workloads with the lengths of their requests")
    if not made:
        reason = (
            "the requests themselves are not beside these tables, so lengths are those served, or of the study file"
        )
        yield Absent("requests as made", reason)


def _length(manifest: dict[str, Any] | None, served: pd.DataFrame | None, field: str, asked: Any) -> str | None:
    """Of the requests as made, else as the cell with the most requests served them, else as the study asks."""
    said = ", as served" if manifest is None and served is not None else ""
    said += f" ({asked})" if said and isinstance(asked, str) else ""
    made = served[field].agg(["min", "max", "median"]) if served is not None else None
    if (lengths := made if manifest is None else manifest[field]) is not None:
        least, most, median = (shown(float(lengths[of])) for of in ("min", "max", "median"))
    elif isinstance(asked, LengthDistribution):
        least, most, median = f"{asked.minimum:,}", f"{asked.maximum:,}", f"about {asked.median:,.6g}"
    else:
        return None if asked is None else shown(asked)
    return (least if least == most else f"{least} to {most}, median {median}") + said


SUBJECT = Subject(id="workloads", title="Workloads", tables=[workloads])
