import numpy as np
import pytest

from workflow_scripts.statistics.start_spread import spread

ONE = np.zeros(8, dtype=int)


def starts(seed=0, cells=8, rounds=6, sd=0.02, drift=0.2):
    rng = np.random.default_rng(seed)
    return rng.normal(0, 1, (cells, 1)) + rng.normal(0, drift, rounds) + rng.normal(0, sd, (cells, rounds))


def test_what_a_round_does_to_all_cells_is_no_variance_of_starts():
    found = spread(starts(), ONE)
    assert found.own.mean() ** 0.5 == pytest.approx(0.02, rel=0.3)
    assert found.df.sum() == 35
    assert found.alike.all()
    assert not found.bimodal.any()
    log = starts(cells=2)
    of_two = spread(log, ONE[:2])
    assert of_two.overlap.tolist() == [1, 1]
    assert of_two.own.sum() == pytest.approx((log[0] - log[1]).var(ddof=1))
    of_two_engines = spread(np.concatenate([starts(sd=0.01), starts(sd=0.2)]), np.repeat([0, 7], 8)).own
    assert of_two_engines[:8].mean() < of_two_engines[8:].mean() / 50


def test_the_pooled_variance_is_unbiased_also_if_later_rounds_lack_cells():
    log = np.random.default_rng(1).normal(0, 0.1, (2000, 6, 4))
    log[:, 3:, 2:] = np.nan
    found = spread(log, np.zeros(6, dtype=int))
    pooled = (found.own * found.df).sum(axis=-1) / found.df.sum(axis=-1)
    assert pooled.mean() == pytest.approx(0.01, rel=0.05)
    assert found.df.sum(axis=-1).max() == pytest.approx(6 * 4 - 6 - 6 - 4 + 1)


def test_a_cell_that_varies_more_than_the_others_stands_out():
    log = starts()
    log[3] += np.array([0.5, -0.2, 0.1, 0.3, 0.0, -0.4])
    found = spread(log, ONE)
    assert found.alike.tolist() == [True] * 3 + [False] + [True] * 4
    assert found.own[found.alike].mean() ** 0.5 == pytest.approx(0.02, rel=0.3)
    assert found.own[3] ** 0.5 == pytest.approx(0.32, rel=0.1)
    assert not found.bimodal.any()


def test_a_cell_with_two_modes_is_found_beside_others_and_one_odd_start_is_no_mode():
    log = starts()
    log[2] += 0.25 * np.array([0, 1, 1, 0, 0, 1])
    log[5, 3] += 0.25
    found = spread(log, ONE)
    assert found.bimodal.tolist() == [False, False, True] + [False] * 5
    assert not found.alike[[2, 5]].any()


def test_a_cell_with_two_modes_is_found_alone_if_they_are_clear_and_a_single_step_in_time_is_no_mode():
    steady, split = np.random.default_rng(1).normal(0, 0.01, (2, 1, 8))
    assert not spread(steady, ONE[:1]).bimodal.any()
    assert spread(split + 0.3 * np.array([0, 1, 0, 1, 1, 0, 0, 1]), ONE[:1]).bimodal.all()
    log = np.random.default_rng(3).normal(0, 0.005, (400, 1, 8)) + 0.09 * (np.arange(8) >= 4)
    assert not spread(log, ONE[:1]).bimodal.any()


def test_chance_makes_hardly_any_cell_bimodal():
    log = np.random.default_rng(2).normal(0, 0.05, (2000, 8, 6))
    assert spread(log, ONE).bimodal.mean() < 0.005


def test_drift_of_all_cells_is_no_mode_although_cells_stop_after_different_rounds():
    rng = np.random.default_rng(3)
    log = rng.normal(0, 0.005, (400, 8, 8)) + 0.09 * (np.arange(8) >= 4)
    log[np.arange(8) >= rng.integers(2, 9, (400, 8, 1))] = np.nan
    assert spread(log, ONE).bimodal.any(axis=-1).mean() < 0.02


def test_nothing_measured_nothing_known():
    found = spread(np.full((3, 0), np.nan), ONE[:3])
    assert not found.df.any()
    assert spread(np.empty((0, 0)), ONE[:0]).own.shape == (0,)
