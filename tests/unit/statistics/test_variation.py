"""How much starts vary, by a study's own and by those of others."""

import numpy as np
import pytest
from scipy import integrate, stats

from tests.unit.questions.synthetic_starts import samples
from workflow_scripts.statistics.errors import Error, added, half_width, p_of
from workflow_scripts.statistics.variation import known_elsewhere

KNOWN = known_elsewhere(False)
INF = np.array([np.inf])


@pytest.mark.parametrize("df", [0.8, 3.0, 20.0])
def test_an_error_is_normal_and_the_logarithm_of_its_variance_too(df):
    spread = np.sqrt(np.log1p(2 / df))

    def tails(distance):
        at = lambda z: stats.norm.pdf(z) * 2 * stats.norm.sf(distance / np.exp((spread * z - spread**2 / 2) / 2))  # noqa: E731
        return integrate.quad(at, -9, 9)[0]

    error = Error(np.array([4.0]), np.array([df]))
    for distance in (0.5, 2.0, 5.0):
        assert p_of(np.array([2 * distance]), error)[0] == pytest.approx(tails(distance), rel=0.02)
    for confidence in (0.9, 0.95, 0.99):
        assert tails(half_width(error, confidence)[0] / 2) == pytest.approx(1 - confidence, rel=0.02)


def test_the_sum_of_errors_is_as_well_known_as_its_parts():
    found = added(Error(np.array([1.0]), np.array([4.0])), Error(np.array([3.0]), INF), Error(np.zeros(1), np.ones(1)))
    assert (found.variance[0], found.df[0]) == (4.0, pytest.approx(16 / (1 / 4)))
    assert half_width(Error(np.array([4.0]), INF), 0.95)[0] == pytest.approx(2 * stats.norm.ppf(0.975), rel=1e-4)
    assert p_of(np.array([0.0, 1.0]), Error(np.zeros(2), np.ones(2))).tolist() == [1.0, 0.0]
    assert p_of(np.array([-1.0]), Error(np.ones(1), INF))[0] > 1


def test_a_start_without_further_evidence_varies_as_in_other_studies():
    of = samples(np.zeros((3, 1)), within=0.02**2, within_df=400, repeats=4.0).variation
    differ = np.hypot(KNOWN.cells_differ, KNOWN.studies_differ)
    expected = KNOWN.starts**2 * np.exp(2 * differ**2) + 0.02**2 / 4
    assert of.starts.variance == pytest.approx(expected, rel=0.02)
    assert of.rounds.variance == pytest.approx(KNOWN.rounds**2 * np.exp(2 * KNOWN.others_differ**2), rel=0.02)


@pytest.mark.parametrize("sd", [0.002, 0.01, 0.1])
def test_many_starts_show_how_much_they_vary_whatever_others_do_and_rounds_too(sd):
    rng = np.random.default_rng(1)
    log = rng.normal(0, sd, (8, 60)) + rng.normal(0, 0.05, 60)
    log[7, rng.random(60) < 0.4] = np.nan
    of = samples(log, within=1e-8, within_df=100).variation
    assert of.starts.variance**0.5 == pytest.approx(np.full(8, sd), rel=0.25)
    assert of.starts.df.min() > 20
    assert of.rounds.variance**0.5 == pytest.approx(np.full(8, 0.05), rel=0.3)


def test_the_own_repeats_of_a_cell_say_what_they_vary():
    few, many = (samples(np.zeros((2, 1)), within=0.3**2, within_df=df, repeats=2.0).of_repeats for df in (2, 200))
    assert many.variance[0] == pytest.approx(0.045, rel=0.03)
    assert many.df[0] > 100 > 10 > few.df[0]
    # Two degrees of freedom leave something of the 2.7 % that others vary.
    assert 0.005 < few.variance[0] < 0.045


def test_a_cell_without_a_start_says_nothing_about_the_others():
    log = np.random.default_rng(2).normal(0, 0.02, (4, 3))
    log[3] = np.nan
    of_three, of_four = (samples(log[:n], repeats=[3.0, 3.0, 3.0, np.nan][:n]).variation.starts for n in (3, 4))
    np.testing.assert_allclose(of_four.variance[:3], of_three.variance)


def test_nothing_measured_nothing_found():
    found = samples(np.full((3, 0), np.nan))
    assert np.isfinite(found.variation.starts.variance).all()
    assert samples(np.empty((0, 0))).variation.starts.variance.shape == (0,)
