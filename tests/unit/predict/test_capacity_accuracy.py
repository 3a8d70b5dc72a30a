"""The accuracy table in docs/capacity.md contains what the code predicts."""

from pathlib import Path

import pytest

from tests.unit.predict.test_kv_capacity import PUBLISHED
from workflow_scripts.catalog.gpus_and_models import get_gpu
from workflow_scripts.predict.engine_memory import GIB, EngineSettings
from workflow_scripts.predict.kv_capacity import predict_capacity

DOC = Path(__file__).parents[3] / "docs" / "capacity.md"
ROWS = {
    cells[0]: [float(cell) for cell in cells[1:]]
    for line in DOC.read_text(encoding="utf-8").splitlines()
    if (cells := [cell.strip() for cell in line.strip("|").split("|")])[0] in PUBLISHED
}


def test_every_published_log_is_in_the_table():
    assert list(ROWS) == list(PUBLISHED)


@pytest.mark.parametrize("case", PUBLISHED)
def test_a_row_has_the_prediction_the_log_and_the_error(case):
    facts, gpu, settings, published_gib = PUBLISHED[case]
    terms = predict_capacity(facts, get_gpu(gpu), EngineSettings(**settings))
    predicted_gib = terms["available_kv_cache"].value / GIB
    error_pct = 100 * (predicted_gib / published_gib - 1)
    assert ROWS[case] == [pytest.approx(n, abs=0.0051) for n in (predicted_gib, published_gib, error_pct)]
