import numpy as np
import pytest

from workflow_scripts.analyse.start_spread import spread

ONE = np.zeros(8, dtype=int)


def starts(seed=0, cells=8, rounds=6, sd=0.02, drift=0.2):
    rng = np.random.default_rng(seed)
    return rng.normal(0, 1, (cells, 1)) + rng.normal(0, drift, rounds) + rng.normal(0, sd, (cells, rounds))


def test_what_a_round_does_to_all_cells_is_no_variance_of_starts():
    found = spread(starts(), ONE)
    assert found.variance[0] ** 0.5 == pytest.approx(0.02, rel=0.3)
    assert set(found.df) == {35}
    assert found.pooled.all()
    assert not found.bimodal.any()


def test_the_pooled_variance_is_unbiased_also_if_later_rounds_lack_cells():
    log = np.random.default_rng(1).normal(0, 0.1, (2000, 6, 4))
    log[:, 3:, 2:] = np.nan
    found = spread(log, np.zeros(6, dtype=int))
    known = found.variance[~np.isnan(found.variance)]
    assert known.mean() == pytest.approx(0.01, rel=0.05)
    assert found.df.max() == 6 * 4 - 6 - 6 - 4 + 1


def test_a_cell_that_varies_more_than_the_others_is_not_pooled():
    log = starts()
    log[3] += np.array([0.5, -0.2, 0.1, 0.3, 0.0, -0.4])
    found = spread(log, ONE)
    assert found.pooled.tolist() == [True] * 3 + [False] + [True] * 4
    assert found.variance[0] ** 0.5 == pytest.approx(0.02, rel=0.3)
    assert not found.bimodal.any()


def test_cells_whose_variances_differ_are_not_pooled():
    sd = np.repeat([0.02, 0.2], 4)[:, None]
    log = np.random.default_rng(1).normal(0, 1, (200, 8, 6)) * sd
    assert spread(log, ONE).pooled.any(axis=-1).mean() < 0.2


def test_too_few_cells_are_not_pooled():
    found = spread(starts(cells=2), ONE[:2])
    assert np.isnan(found.variance).all()
    assert not found.pooled.any()


def test_devices_and_engines_are_pooled_apart():
    log = np.concatenate([starts(sd=0.01), starts(sd=0.2)])
    found = spread(log, np.repeat([0, 7], 8))
    assert found.variance[0] < found.variance[8] / 50


def test_a_cell_with_two_modes_is_found_beside_others_and_one_odd_start_is_no_mode():
    log = starts()
    log[2] += 0.25 * np.array([0, 1, 1, 0, 0, 1])
    log[5, 3] += 0.25
    found = spread(log, ONE)
    assert found.bimodal.tolist() == [False, False, True] + [False] * 5
    assert not found.pooled[[2, 5]].any()


def test_a_cell_with_two_modes_is_found_alone_if_they_are_clear():
    steady, split = np.random.default_rng(1).normal(0, 0.01, (2, 1, 8))
    assert not spread(steady, ONE[:1]).bimodal.any()
    assert spread(split + 0.3 * np.array([0, 1, 0, 1, 1, 0, 0, 1]), ONE[:1]).bimodal.all()


def test_chance_makes_hardly_any_cell_bimodal():
    log = np.random.default_rng(2).normal(0, 0.05, (2000, 8, 6))
    assert spread(log, ONE).bimodal.mean() < 0.005


def test_nothing_measured_nothing_known():
    found = spread(np.full((3, 0), np.nan), ONE[:3])
    assert not found.pooled.any()
    assert spread(np.empty((0, 0)), ONE[:0]).variance.shape == (0,)
