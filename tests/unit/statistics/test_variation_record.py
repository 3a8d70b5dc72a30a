import numpy as np
import pandas as pd
import pytest

from benchmarks.variance import of_studies


@pytest.mark.filterwarnings("ignore")  # statsmodels warns that an estimate may lie on the boundary
def test_the_variation_of_gpus_is_that_of_a_mixed_model_over_studies():
    """20 cells on 12 occasions of two studies; starts vary by 2 % and occasions by 5 %."""
    rng = np.random.default_rng(1)
    rows = [
        {
            "cell_id": f"c{c}",
            "boot_id": f"boot-{o // 3}",
            "round": o % 3,
            "start": o,
            "log": c + rng.normal(0, 0.02) + at,
        }
        for o, at in enumerate(rng.normal(0, 0.05, 12))
        for c in range(20)
    ]
    cells = pd.DataFrame(rows).assign(outcome="ok", comparable=True, processor=None)
    found = of_studies(cells.assign(output_tokens_per_s=np.exp(cells["log"])))
    assert (found["starts_pct"], found["rounds_pct"]) == (pytest.approx(2, rel=0.1), pytest.approx(5, rel=0.5))
    assert (found["starts_df"], found["rounds_df"]) == (20 * 12 - 20 - 11, 11)
    assert of_studies(cells.assign(output_tokens_per_s=1.0).drop_duplicates("cell_id")) == {}
