import numpy as np
import pytest

from tests.unit.questions.choose.small_grid import IDS, POINTS, SEQS, cells, law, plan
from workflow_scripts.questions.choose.estimates import check_cells, estimate


def error_pct(found, point, rate):
    return 100 * abs(np.expm1(found.table.loc[IDS[point], "log_rate"] - np.log(rate(point))))


def test_check_cells_are_a_stable_share_of_the_feasible_ones():
    whole = plan(infeasible=lambda point: "too large" if point[1] == 64 else None)
    check = check_cells(whole, 25, "study")
    assert len(check) == round(0.25 * 18)
    assert not any("seqs64" in cell for cell in check)
    assert check_cells(whole, 25, "another") != check
    left = whole[whole["cell_id"] != next(cell for cell in whole["cell_id"] if cell not in check)]
    assert set(check_cells(left, 25, "study")) <= set(check_cells(whole, 30, "study"))


def test_before_anything_is_measured_the_plan_and_its_band_hold():
    whole = plan(infeasible=lambda point: "too large" if point == POINTS[0] else None)
    found = estimate(whole, cells([]), ())
    assert found.table["state"].tolist() == ["infeasible"] + ["predicted"] * 23
    assert np.exp(found.table["log_rate"]).tolist() == pytest.approx(whole["output_tokens_per_s"].tolist())
    for end in ("low", "high"):
        assert (found.table[end] / whole.set_index("cell_id")[f"output_tokens_per_s_{end}"]).between(0.98, 1.02).all()
    assert found.table["cost_s"].tolist() == pytest.approx(whole["cell_s"].tolist())
    assert found.draws.std(axis=0) == pytest.approx(found.table["sd"].to_numpy(), rel=0.1)


def test_a_cell_that_nothing_predicts_is_unknown_until_others_are_measured():
    without = dict.fromkeys(("output_tokens_per_s", "output_tokens_per_s_low", "output_tokens_per_s_high"))
    whole = plan(**without)
    assert set(estimate(whole, cells([]), ()).table["state"]) == {"unknown"}
    some = [point for point in POINTS if point[2] != 16]
    found = estimate(whole, cells(some), ())
    assert set(found.table["state"]) == {"measured", "predicted"}
    assert max(error_pct(found, point, law) for point in set(POINTS) - set(some)) < 10


@pytest.mark.parametrize("wrong", ["a device", "a block size"])
def test_a_wrong_cost_is_learned_from_some_of_its_cells(wrong):
    def rate(point):
        gpu, _, block = point
        return law(point) * (0.85 if (gpu == "h200" if wrong == "a device" else block == 32) else 1.0)

    some = [point for point in POINTS if point[1] in SEQS[1:3]]
    found = estimate(plan(), cells(some, rate), ())
    assert max(error_pct(found, point, rate) for point in POINTS) < 3
    assert max(error_pct(found, point, law) for point in POINTS) > 10
    measured = found.table["state"] == "measured"
    assert found.table.loc[measured, "sd"].max() < found.table.loc[~measured, "sd"].min()


def test_nothing_is_learned_from_a_check_cell_but_its_error():
    check = [IDS[point] for point in POINTS[::4]]

    def of_rates(times):
        return cells(POINTS[::2], lambda point: law(point) * (times if IDS[point] in check else 1))

    near, far = (estimate(plan(), of_rates(times), check) for times in (1.0, 1.5))
    assert set(near.table.loc[check, "state"]) == {"check"}
    assert far.table["log_rate"].tolist() == near.table["log_rate"].tolist()
    assert (far.table["sd"] > 0.99 * near.table["sd"]).all()
    assert far.table["sd"].max() > 1.5 * near.table["sd"].max()
    at = far.table.index.get_loc(check[1])
    assert far.draws[:, at].mean() == pytest.approx(far.table["log_measured"].iloc[at], abs=0.01)
    assert far.draws[:, at].std() < 0.02


def test_a_round_on_a_slow_node_is_an_error_that_all_cells_of_its_device_share():
    table = cells(POINTS)
    table = table[table["start"] <= 2].copy()
    table.loc[table["gpu"].eq("h200") & table["start"].eq(1), "output_tokens_per_s"] *= 0.88
    found = estimate(plan(), table, [IDS[point] for point in POINTS[::8]])
    h200, l40s = (found.draws[:, [point[0] == gpu for point in POINTS]].mean(axis=1) for gpu in ("h200", "l40s"))
    low, high = np.quantile(h200 - l40s, [0.025, 0.975])
    assert low < np.log(4) < high


def test_errors_within_the_measured_cells_widen_bands():
    noise = dict(zip(POINTS, np.random.default_rng(3).normal(0, 0.15, len(POINTS)), strict=True))
    some = POINTS[::3]
    found = estimate(plan(band_pct=2.0), cells(some, lambda point: law(point) * np.exp(noise[point])), ())
    errors = {point: np.log(law(point)) + noise[point] - found.table.loc[IDS[point], "log_rate"] for point in POINTS}
    rest = set(POINTS) - set(some)
    assert np.mean([abs(errors[point]) < 1.96 * found.table.loc[IDS[point], "sd"] for point in rest]) > 0.9


@pytest.mark.parametrize("far", ["checked", "measured"])
def test_a_surprise_widens_the_bands_of_its_place_and_hardly_those_of_others(far):
    measured = [point for point in POINTS if point[1] in SEQS[2:]] + [("l40s", 1, 8), ("h200", 1, 8)]
    check = [IDS["l40s", 1, 8], IDS["h200", 1, 8]]

    def rate(point, times):
        surprised = point[1] == 1 if far == "checked" else point[1] > 1
        return law(point) * (times if point[0] == "l40s" and surprised else 1.0)

    none, one = (estimate(plan(), cells(measured, lambda p, times=times: rate(p, times)), check) for times in (1, 0.7))
    wider = one.table["sd"] / none.table["sd"]
    assert wider[IDS["l40s", 4, 16]] > 2 * wider[IDS["h200", 4, 16]]


def test_a_cell_that_ran_is_measured_and_one_that_was_refused_is_infeasible():
    refused = {POINTS[3]: "infeasible", POINTS[4]: "engine_error"}
    table = cells(POINTS[:6], outcome=lambda point: refused.get(point, "ok"))
    whole = plan(infeasible=lambda point: "too large" if point == POINTS[0] else None)
    state = estimate(whole, table, ()).table["state"]
    assert state.tolist()[:7] == ["measured"] * 3 + ["infeasible", "predicted", "measured", "predicted"]
