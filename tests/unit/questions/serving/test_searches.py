"""The highest load of each start, and what the page answers with it."""

from types import SimpleNamespace

import pytest

from tests.unit.made_studies import made_study
from tests.unit.questions.parsed_tables import started, write_parsed
from tests.unit.questions.synthetic_cells import cell, table
from workflow_scripts.questions.serving.searches import SCHEMA, search_table
from workflow_scripts.questions.serving.section import answers
from workflow_scripts.tables.results import Tables
from workflow_scripts.tables.typed_tables import write_table

SHORT = ", in passes too short to show a queue"


@pytest.mark.parametrize(
    ("found", "per_pass", "verdict", "said"),
    [
        ((12.5, 11.0, 14.0), 100, "Yes", "up to 12.5 requests/s"),
        ((12.5, 11.0, 14.0), 99, "Yes", f"up to 12.5 requests/s{SHORT}"),
        ((None, 64.0, None), 100, "Yes", "at 64 requests/s and more"),
        ((None, None, 0.25), 100, "No", "not at 0.25 requests/s"),
    ],
)
def test_a_start_tells_its_load(found, per_pass, verdict, said, tmp_path):
    study = made_study(slo={"ttft_s": 0.5})
    rows = cell({"find": "highest_rate", "max_num_seqs": 16}, engine="vllm-serve")
    others = cell({"request_rate_per_s": 1}, engine="vllm-serve")
    names = ("highest_load", "highest_load_low", "highest_load_high")
    cell_id = rows[0]["cell_id"]
    sent = dict(zip(names, found, strict=True)) | {"search_passes": 20, "search_requests": 20 * per_pass}
    write_parsed(tmp_path / "h200", "starts", started(cell_id, **sent), started(others[0]["cell_id"]))
    made = SCHEMA.validate(search_table(study, table(rows, others), tmp_path))
    assert made["cell_id"].tolist() == [cell_id]
    assert made["too_short"].tolist() == [per_pass < 100]
    write_table(made, tmp_path / "searches.parquet")
    answer = next(iter(answers(SimpleNamespace(tables=Tables(tmp_path)))))  # type: ignore[arg-type]
    assert (answer.verdict, answer.answer) == (verdict, said)
