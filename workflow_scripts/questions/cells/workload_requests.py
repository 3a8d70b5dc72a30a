"""What the engines were asked: the workloads, and the lengths of their requests."""

from collections.abc import Iterator
from typing import Any

import pandas as pd

from workflow_scripts.common.files import read_json
from workflow_scripts.page.blocks import Absent, Block, shown, table_of
from workflow_scripts.page.report import Report, Subject
from workflow_scripts.study.paths import MANIFEST
from workflow_scripts.workloads.sampling import in_words
from workflow_scripts.workloads.workload_kinds import FileWorkload, LengthDistribution, TextWorkload


def workloads(report: Report) -> Iterator[Block]:
    rows = []
    paths = sorted(report.cells.parent.glob(f"prepared/workloads/**/{MANIFEST}"))
    made = sorted(map(read_json, paths), key=lambda manifest: -int(manifest["num_requests"]))
    served = dict(list(report.tables.rows.dropna(subset="num_requests").groupby("workload")["num_requests"]))
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
                "prompt_tokens": _length(manifest, "prompt_tokens", prompt),
                "output_tokens": _length(manifest, "output_tokens", getattr(workload, "output_tokens", None)),
                "Requested kind": workload.kind
                + (", chat" if isinstance(workload, TextWorkload) and workload.chat else ""),
                "Actual kind": manifest and manifest["kind"],
                "Made from": str(workload.file) if isinstance(workload, FileWorkload) else None,
                "Requests per cell": " to ".join(dict.fromkeys([shown(min(counts)), shown(max(counts))])),
                "Sampling": in_words(workload.sampling),
            }
        )
    yield table_of(pd.DataFrame(rows), None, "Workloads with the lengths of their requests")
    if not made:
        yield Absent("the requests themselves are not beside these tables, so lengths are those of the study file")


def _length(manifest: dict[str, Any] | None, field: str, asked: Any) -> str | None:
    """Of the requests as made, else as the study asks."""
    if manifest is not None:
        least, most, median = (shown(float(manifest[field][end])) for end in ("min", "max", "median"))
    elif isinstance(asked, LengthDistribution):
        least, most, median = f"{asked.minimum:,}", f"{asked.maximum:,}", f"about {asked.median:,.6g}"
    else:
        return None if asked is None else shown(asked)
    return least if least == most else f"{least} to {most}, median {median}"


SUBJECT = Subject(id="workloads", title="Workloads", tables=[workloads])
