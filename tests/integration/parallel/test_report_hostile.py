"""A page whose every text is hostile: names, reasons, logs, settings and addresses stay text, and every view opens."""

import shutil

import pandas as pd
import pytest

from workflow_scripts.present import page

pytestmark = pytest.mark.needs_tool("chromium")

HOSTILE = "\"'><img src=x onerror=hacked()><script>hacked()</script></template><!-- {{7*7}} ${7*7} =1+1 | \u202e\x07%"
# Texts by which rows are found or told apart; their values are those of the schemas and of the study.
KEPT = {
    *("cell_id", "study", "gpu", "gpu_a", "gpu_b", "engine", "hf_engine", "model", "workload", "outcome", "source"),
    *("rates", "quantity", "measure", "metric", "role", "comparison", "knob", "verdict", "layout", "limited_by"),
    *("started_at", "held", "lock_sha256", "processor", "hf_kind", "axis", "factor", "kind", "fastest"),
    *("cannot_show", "differs_in", "definition"),
}
ADDRESSES = [
    *("#%", "#%E0%A4%A", "#view=%", "#view=<script>", "#no-such-section", "#view=__proto__"),
    *(
        "#view=explore&y=constructor&x=%00&by=__proto__&hide=<b>&gpu=%22&log=z&cell=../../etc/passwd",
        "#view=explore&outcome=",
    ),
    *("#view=limits&model=%00&p=-1&ttft=NaN&price.h200=1e999&lat=<i>&best=x", "#view=compare"),
]


@pytest.fixture(scope="module")
def hostile(report, tmp_path_factory):
    """The page of the made-up results with a hostile text wherever a table or a log holds free text."""
    root = tmp_path_factory.mktemp("hostile")
    for name in ("tables", "cells", "parsed"):
        shutil.copytree(report.parent / name, root / name)
    for path in sorted((root / "tables").glob("*.parquet")):
        rows = pd.read_parquet(path)
        texts = [
            c for c in rows.columns if pd.api.types.is_string_dtype(rows[c]) and c not in KEPT and "knobs" not in c
        ]
        rows.assign(**{c: rows[c].where(rows[c].isna(), HOSTILE) for c in texts}).to_parquet(path)
    for log in (root / "cells").glob("**/*.log"):
        log.write_text(f"{HOSTILE}\n\x1b[31m{HOSTILE}\n", encoding="utf-8")
    out = root / "report.html"
    folders = ["--tables", str(root / "tables"), "--figures", str(root / "none"), "--cells", str(root / "cells")]
    assert page.main(["--study", str(report.parent / "synthetic.yaml"), *folders, "--out", str(out)]) == 0
    return out


@pytest.fixture
def tab(one_tab):
    """The tab; whatever a test did, the console must have stayed silent and nothing was requested."""
    yield one_tab
    assert one_tab.evaluate("document.querySelectorAll('[onerror], img[src=x], main script').length") == 0
    assert one_tab.complaints == []


def test_hostile_texts_stay_texts_in_every_view_and_for_every_outcome(tab, hostile):
    tab.open(hostile)
    for name in tab.evaluate("[...document.querySelectorAll('[role=tab]')].map((tab) => tab.id)"):
        tab.evaluate(f"document.getElementById({name!r}).click()")
        tab.wait("document.querySelector('[role=tabpanel]:not([hidden]) :is(table, dl, input)')")
    assert "<script>hacked()" in tab.evaluate("document.getElementById('view-report').textContent")
    cells = pd.read_parquet(hostile.parent / "tables" / "cells.parquet").drop_duplicates("outcome")
    assert len(cells) > 4
    for row in cells.itertuples():
        tab.open(hostile, f"#view=explore&cell={row.cell_id}")
        tab.wait("document.querySelector('dialog')?.open")
        told = tab.evaluate("document.querySelector('dialog').textContent")
        assert "<script>hacked()" in told or row.outcome == "missing", row.outcome
        words = {"infeasible": "In the engine's words", "timeout": "Reason", "invalid": "Check that failed"}
        assert words.get(row.outcome, "") in told


@pytest.mark.parametrize("address", ADDRESSES)
def test_any_address_leads_to_a_view(tab, hostile, address):
    tab.open(hostile, address)
    tab.wait("document.querySelector('[role=tabpanel]:not([hidden]) :is(table, dl, input, .absent)')")
    assert tab.evaluate("document.querySelectorAll('[role=tab][aria-selected=true]').length") == 1
    assert not tab.evaluate("document.querySelector('dialog')?.open ?? false")
