import numpy as np
import pandas as pd
import pytest

from benchmarks.variance import between_occasions, components


def starts(within: float, between_starts: float, between_occasions: float) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    rows = []
    for occasion, of_occasion in enumerate(rng.normal(0, between_occasions, 400)):
        for of_start in rng.normal(0, between_starts, 4):
            repeats_s = np.exp(of_occasion + of_start + rng.normal(0, within, 3))
            rows.append({"occasion": occasion, "repeats_s": repeats_s})
    return pd.DataFrame(rows)


@pytest.mark.parametrize("levels", [(0.03, 0.02, 0.1), (0.1, 0.05, 0.05), (0.01, 0.08, 0.02)])
def test_each_level_gets_its_own_spread(levels):
    found = components(starts(*levels))
    assert list(found) == ["within a start", "between starts", "between occasions"]
    assert np.allclose(list(found.values()), 100 * np.array(levels), rtol=0.15, atol=0.3)


def of_occasions(count: int, together: float, own: float, within: float = 0.01) -> pd.DataFrame:
    rng = np.random.default_rng(1)
    moved = rng.normal(0, together, count)
    rows = [
        {"cell": cell, "occasion": occasion, "repeats_s": np.exp(moved[occasion] + alone + rng.normal(0, within, 2))}
        for occasion in range(count)
        for cell in range(6)
        for alone in [rng.normal(0, own)]
        for _ in range(3)
    ]
    return pd.DataFrame(rows)


@pytest.mark.parametrize(("together", "own"), [(0.1, 0.04), (0.02, 0.06)])
def test_what_an_occasion_does_to_all_cells_is_told_from_what_it_does_to_one(together, own):
    found = between_occasions(of_occasions(300, together, own))
    assert np.allclose(list(found.values()), [100 * together, 100 * own], rtol=0.15, atol=0.3)
