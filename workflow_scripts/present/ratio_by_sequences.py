"""The ratio of two devices by the number of sequences: observed, expected, and the ratios of their rates."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.patches import Patch

from workflow_scripts.common.wording import listed, number, plural
from workflow_scripts.present.plot import Panel, Plot, key, log2_axis, mark_handles
from workflow_scripts.present.ratio_plot import Reference, repeats_of_pairs
from workflow_scripts.present.report_tables import Tables, records, require
from workflow_scripts.present.series import NAMES, Group, groups_varying
from workflow_scripts.present.style import COLOURS, INK, MUTED, Mark, marks

# From this share of samples at the power limit on, a sentence names it.
MUCH_AT_POWER_LIMIT = 0.5
_EXPECTED_COLOUR = COLOURS[3]
# Title of a panel -> columns of each device, and the end of the axis if it is always the same.
DRAWN: Mapping[str, tuple[Sequence[str], float | None]] = {
    "Samples at the power limit (%)": (["power_cap_pct"], 105),
    "SM clock (MHz), median and lowest": (["sm_clock_mhz_median", "sm_clock_mhz_min"], None),
}
_LOOKS: Sequence[Mapping[str, Any]] = ({}, {"fillstyle": "none", "linestyle": (0, (2, 1.5))})
_X_LABEL = "max-num-seqs (sequences)"
_WITHOUT_WAITING: Mapping[str, Any] = {"marker": "D", "markersize": 4, "fillstyle": "none", "linestyle": "none"}


def of_rates(ratios: pd.DataFrame) -> pd.DataFrame:
    return ratios[ratios["metric"] == "output_tokens_per_s"]


def groups_by_sequences(tables: Tables) -> list[Group]:
    """The ratios of each pair of devices, model and workload by number of sequences, `x`; all else is equal."""
    rows = of_rates(tables.need("ratios"))
    settings = tables.measured.drop_duplicates("cell_id")[[*NAMES, "knobs", "cell_id", *tables.knobs]]
    rows = rows.merge(settings.rename(columns={"gpu": "gpu_a"}), on=["gpu_a", *NAMES[1:], "knobs"])
    rows = rows.assign(gpu=rows["gpu_a"] + " over " + rows["gpu_b"])
    groups = groups_varying(rows, "knob_max_num_seqs", tables.knobs, NAMES)
    return [_longest_series(group) for group in groups]


def _longest_series(group: Group) -> Group:
    """The setting of other knobs with the most numbers of sequences, the first of several."""
    label = group.rows.groupby("series", sort=False)["x"].nunique().idxmax()
    rows = group.rows[group.rows["series"] == label].sort_values("x")
    pair = group.keys["gpu"]
    title = group.title if pair in group.title else f"{pair} · {group.title}"
    return Group(f"{title}: {label}" if label else title, group.keys, rows)


def plot_by_sequences(groups: list[Group], references: Iterable[Reference]) -> Plot:
    rows = pd.concat([group.rows for group in groups])
    references = [r for r in references if rows[r.column].notna().any()]
    handles = [key("observed (95 %)", marker="o")]
    if rows["device_ratio"].notna().any():
        handles.append(key("without host waits", **_WITHOUT_WAITING))
    if is_expected := bool(rows["expected_ratio"].notna().any()):
        handles.append(Patch(color=_EXPECTED_COLOUR, alpha=0.35, label="expected (predicted)"))
    # A colour for each kind of rate, a dash for those that were measured.
    kinds = {r.label.partition(" (")[0]: r.color for r in references}
    handles += [key(name, color) for name, color in kinds.items()]
    handles += [key("rates as measured", MUTED, r.style) for r in references[-1:] if r.style != "-"]
    return Plot(
        title="Ratio of devices by the number of sequences that may run at once",
        alt=" ".join(f"{group.title}: {ratios_in_words(group.rows)}." for group in groups[:4]),
        sources=[*sorted(rows["source"].unique()), *(["predicted"] if is_expected else []), "published"],
        panels=[Panel(group.title, partial(_draw_ratios, rows=group.rows, references=references)) for group in groups],
        x_label=_X_LABEL,
        y_label="Ratio of output tokens/s",
        handles=handles,
        repeats=repeats_of_pairs(rows, "repeats_a", "repeats_b"),
    )


def power_limit(tables: Tables) -> Plot:
    groups = [group for group in groups_by_sequences(tables) if group.rows["power_cap_share_a"].notna().any()]
    require(groups, "no compared device reports its power limit")
    devices = marks(tables.devices)
    named = dict.fromkeys(gpu for group in groups for side in "ab" for gpu in group.rows[f"gpu_{side}"])
    clocks, panels = [], []
    for group in groups:
        shares = {f"power_cap_pct_{side}": 100 * group.rows[f"power_cap_share_{side}"] for side in "ab"}
        draw = partial(_draw_sides, rows=group.rows.assign(**shares), named=devices)
        for what, (columns, top) in DRAWN.items():
            title = f"{group.title * (len(groups) > 1)}\n{what}".strip()
            panels.append(Panel(title, partial(draw, columns=columns, top=top)))
        last = group.rows.iloc[-1]
        clocks += [f"{last[f'gpu_{side}']}: {last[f'sm_clock_mhz_min_{side}']:,.0f} MHz at least." for side in "ab"]
    return Plot(
        title="How often the power limit lowers the clocks, and how far",
        alt=" ".join(clocks),
        sources=["measured"],
        panels=panels,
        x_label=_X_LABEL,
        handles=mark_handles({name: devices[name] for name in named}),
        panel_height_in=2.0,
    )


def _draw_ratios(ax: Axes, rows: pd.DataFrame, references: Iterable[Reference]) -> None:
    drawn = [rows["ratio"]]
    for reference in references:
        for value in rows[reference.column].dropna().unique():
            ax.axhline(value, color=reference.color, linestyle=reference.style, linewidth=1.2)
        drawn.append(rows[reference.column])
    if rows["expected_ratio"].notna().any():
        low, high = (rows[f"expected_ratio_{end}"].fillna(rows["expected_ratio"]) for end in ("low", "high"))
        ax.fill_between(rows["x"], low, high, color=_EXPECTED_COLOUR, alpha=0.25, linewidth=0)
        ax.plot(rows["x"], rows["expected_ratio"], color=_EXPECTED_COLOUR, linewidth=1)
        drawn += [low, high]
    ax.vlines(rows["x"], rows["ratio_low"], rows["ratio_high"], color=INK, linewidth=1.5)
    ax.plot(rows["x"], rows["ratio"], color=INK, marker="o")
    if rows["device_ratio"].notna().any():
        ax.plot(rows["x"], rows["device_ratio"], color=INK, **_WITHOUT_WAITING)
    log2_axis(ax, rows["x"].unique())
    # An interval that is wider than everything else ends at the edge.
    values = np.concatenate([column.to_numpy(dtype=float) for column in drawn])
    bottom, top = np.nanmin([*values, 1]), np.nanmax([*values, 1])
    room = (top - bottom) / 2
    ends = np.clip(rows[["ratio_low", "ratio_high"]].to_numpy(dtype=float).ravel(), bottom - room, top + room)
    ax.set_ylim(np.nanmin([bottom, *ends]) - 0.05, np.nanmax([top, *ends]) + 0.05)
    ax.axhline(1, color=MUTED, linewidth=0.8, zorder=0)


def _draw_sides(
    ax: Axes, rows: pd.DataFrame, named: Mapping[str, Mark], columns: Sequence[str], top: float | None
) -> None:
    """Draw columns of both devices, the first with filled marks on a solid line."""
    for side in "ab":
        mark = named[rows[f"gpu_{side}"].iloc[0]]
        for column, look in zip(columns, _LOOKS, strict=False):
            ax.plot(rows["x"], rows[f"{column}_{side}"], color=mark.color, marker=mark.marker, **look)
    log2_axis(ax, rows["x"].unique())
    ax.set_ylim(0, top or 1.05 * ax.get_ylim()[1])


def speedups(tables: Tables) -> Iterator[tuple[str, str, str]]:
    """For each pair of devices the ratios at the lowest and the highest number of sequences, in a sentence, and why.

    For the first screen. All numbers are from the table `ratios`: observed ratios with the expected ones, the ratios of
    the bandwidths, and the predicted share of the time in which the slower device reads weights. A power limit is named
    if it was reached in half of the samples.
    """
    seen = set()
    for group in groups_by_sequences(tables):
        if group.keys["gpu"] not in seen:
            seen.add(group.keys["gpu"])
            beside = _bandwidths(records(group.rows)[0])
            told = f"{group.keys['gpu']}: {ratios_in_words(group.rows)}{beside}.{_limited(group.rows)}"
            yield "{:.2f} to {:.2f}".format(*group.rows["ratio"].iloc[[0, -1]]), told, _why(group.rows)


def misses_pct(rows: pd.DataFrame, column: str) -> float:
    """Root mean square of the differences between a column and the observed ratio, in per cent.

    >>> round(misses_pct(pd.DataFrame({"ratio": [1.0, 2.0], "expected_ratio": [1.01, 1.98]}), "expected_ratio"), 1)
    1.0
    """
    return float(100 * np.sqrt(np.mean(np.log((rows[column] / rows["ratio"]).astype(float)) ** 2)))


def ratios_in_words(rows: pd.DataFrame) -> str:
    """The first and the last ratio: `1.33 times at 1 sequence (expected 1.3), 1.17 at 256 (expected 1.14)`."""
    ends = records(rows.iloc[[0, -1]])
    told = []
    for row, unit in zip(ends, (" times", ""), strict=True):
        said = f" (expected {row['expected_ratio']:.2f})" if pd.notna(row["expected_ratio"]) else ""
        at = plural(int(row["x"]), "sequence") if unit else number(row["x"])
        told.append(f"{row['ratio']:.2f}{unit} at {at}{said}")
    return ", ".join(told)


def _why(rows: pd.DataFrame) -> str:
    if rows["weights_share_b"].isna().all():
        return ""
    shares = " and ".join(f"{100 * share:.0f} %" for share in rows["weights_share_b"].iloc[[0, -1]])
    return f" Reading weights takes {shares} of the time on {rows['gpu_b'].iloc[0]}."


def _limited(rows: pd.DataFrame) -> str:
    last = records(rows.tail(1))[0]
    if limited := [side for side in "ab" if last[f"power_cap_share_{side}"] >= MUCH_AT_POWER_LIMIT]:
        shares = listed(f"{100 * last[f'power_cap_share_{x}']:.0f} % ({last[f'gpu_{x}']})" for x in limited)
        lowest = min(last[f"sm_clock_mhz_min_{side}"] for side in limited)
        return (
            f" At {number(last['x'])} the power limit lowers clocks in {shares} of the samples, to {lowest:,.0f} MHz."
        )
    return ""


def _bandwidths(row: Mapping[str, Any]) -> str:
    named = {"bandwidth_ratio": "data sheets", "measured_bandwidth_ratio": "measured"}
    known = [f"{row[of]:.2f} ({source})" for of, source in named.items() if pd.notna(row[of])]
    return f"; memory bandwidths differ by {listed(known)}" if known else ""
