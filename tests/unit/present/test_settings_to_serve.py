"""Recommended settings and the workloads that they were measured with."""

from tests.unit.present.conftest import changed
from workflow_scripts.page.blocks import Table
from workflow_scripts.questions.cells.workload_requests import workloads


def test_a_workload_has_the_requests_that_its_cells_served(report, tmp_path, cells):
    chat = cells["workload"].eq("chat") & cells["repeat"].notna()
    cells.loc[chat, "num_requests"] = [12, *[512] * (chat.sum() - 1)]
    table = next(block for block in workloads(changed(report, tmp_path, cells=cells)) if isinstance(block, Table))
    place = table.headings.index("Requests per cell")
    assert {row[0]: row[place] for row in table.rows}["chat"] == "12 to 512"
    prompt = table.headings.index("Prompt tokens")
    assert {row[0]: row[prompt] for row in table.rows}["system-prompt"] == "512 shared and 64"
