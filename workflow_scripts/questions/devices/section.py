"""Ratios of devices: by the number of sequences, beside what is predicted and the ratios of their rates."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from math import isnan
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.patches import Patch

from workflow_scripts.common.columns import column
from workflow_scripts.common.wording import listed, number, plural
from workflow_scripts.device.device_record import MUCH_AT_POWER_LIMIT
from workflow_scripts.page.blocks import Block, Finding
from workflow_scripts.page.plot import Panel, Plot, key, log2_axis, mark_cells, mark_handles
from workflow_scripts.page.ratio_plot import Reference, labelled, plot_ratios, repeats_of_pairs
from workflow_scripts.page.report import CELL, FigurePart, Report, Subject, TablePart
from workflow_scripts.page.sentences import NOT_DECIDED, claims_on, explained, some, span, with_interval
from workflow_scripts.page.series import Group, groups_varying
from workflow_scripts.page.style import COLOURS, INK, MUTED, LineStyle, Mark, marks
from workflow_scripts.questions.devices.table import EXPECTED
from workflow_scripts.study.grid import COORDINATES
from workflow_scripts.study.setting_words import knob_axis
from workflow_scripts.tables.results import RAN_IN, RATE, MissingError, Tables, records, require

_PREDICTED_COLOUR = COLOURS[3]
# Title of a panel -> columns of each device, and the end of the axis if it is always the same.
DRAWN: Mapping[str, tuple[Sequence[str], float | None]] = {
    column("power_cap_share").axis: (["power_cap_share"], 105),
    f"{column('sm_clock_mhz').axis}, median and lowest": (["sm_clock_mhz_median", "sm_clock_mhz_min"], None),
}
_LOOKS: Sequence[Mapping[str, Any]] = ({}, {"fillstyle": "none", "linestyle": (0, (2, 1.5))})
_WITHOUT_WAITING: Mapping[str, Any] = {"marker": "D", "markersize": 4, "fillstyle": "none", "linestyle": "none"}
_WHILE_FULL: Mapping[str, Any] = {**_WITHOUT_WAITING, "marker": "s"}

OBSERVED = f"{column(RATE).in_words} (measured)"
# Solid lines were published, dashed lines measured.
DASHED: LineStyle = (0, (3, 1.5))
_REFERENCES = (
    Reference("bandwidth_ratio", "memory bandwidth (published)", COLOURS[1], "-"),
    Reference("flop_ratio", "matrix rate (published)", COLOURS[2], "-"),
    Reference("measured_bandwidth_ratio", "memory bandwidth (measured)", COLOURS[1], DASHED),
    Reference("measured_flop_ratio", "matrix rate (measured)", COLOURS[2], DASHED),
    Reference("measured_cache_ratio", "cache bandwidth (measured)", COLOURS[4], DASHED),
)
PAIR = {"gpu_a": "First device", "gpu_b": "Second device", **CELL}
_SHARES = {
    "weights_share": "Reading weights",
    "kv_share": "Reading KV",
    "operations_share": "Operations",
    "fixed_share": "Fixed costs",
    "launch_share": "Launches and arrival",
}
# Why a pair of devices cannot show that decoding follows memory bandwidth.
_CANNOT_SHOW: Mapping[str, str] = {
    "disturbed": "others used a CPU while its rates were measured, so it is unknown how fast it reads memory",
    "cached weights": "the weights that a step reads fit the last-level caches of both",
    "equal bandwidths": "their bandwidths hardly differ",
}


def of_rates(ratios: pd.DataFrame) -> pd.DataFrame:
    return ratios[ratios["metric"] == RATE]


def groups_by_sequences(tables: Tables) -> list[Group]:
    """The ratios of each pair of devices, model and workload by number of sequences, `x`; all else is equal."""
    rows = of_rates(tables.need("devices"))
    settings = tables.measured.drop_duplicates("cell_id")
    settings = settings[[*COORDINATES, RAN_IN, "knobs", "cell_id", *tables.knobs]]
    rows = rows.merge(settings.rename(columns={"gpu": "gpu_a"}), on=["gpu_a", *COORDINATES[1:], "knobs"])
    rows = rows.assign(gpu=rows["gpu_a"] + " over " + rows["gpu_b"])
    groups = groups_varying(rows, "knob_max_num_seqs", tables.knobs, COORDINATES)
    return [_longest_series(group) for group in groups]


def _longest_series(group: Group) -> Group:
    """The setting of other knobs with the most numbers of sequences, the first of several."""
    label = group.rows.groupby("series", sort=False)["x"].nunique().idxmax()
    rows = group.rows[group.rows["series"] == label].sort_values("x")
    pair = group.keys["gpu"]
    title = group.title if pair in group.title else f"{pair} · {group.title}"
    return Group(f"{title}: {label}" if label else title, group.keys, rows)


def _plot_by_sequences(groups: list[Group]) -> Plot:
    rows = pd.concat([group.rows for group in groups])
    references = [r for r in _REFERENCES if rows[r.column].notna().any()]
    handles = [key("whole repeats (95 %)", marker="o")]
    if rows["steady_ratio"].notna().any():
        handles.append(key("while full", **_WHILE_FULL))
    if rows["device_ratio"].notna().any():
        handles.append(key("without host waits", **_WITHOUT_WAITING))
    if is_predicted := bool(rows["predicted_ratio"].notna().any()):
        handles.append(Patch(color=_PREDICTED_COLOUR, alpha=0.35, label="predicted"))
    # A colour for each kind of rate, a dash for those that were measured.
    kinds = {r.label.partition(" (")[0]: r.color for r in references}
    handles += [key(name, color) for name, color in kinds.items()]
    handles += [key("rates as measured", MUTED, r.style) for r in references[-1:] if r.style != "-"]
    return Plot(
        title="Ratio of devices by the number of sequences that may run at once",
        alt=" ".join(f"{group.title}: {ratios_in_words(group.rows)}." for group in groups[:4]),
        sources=[*sorted(rows["source"].unique()), *(["predicted"] if is_predicted else []), "published"],
        panels=[Panel(group.title, partial(_draw_ratios, rows=group.rows, references=references)) for group in groups],
        x_label=knob_axis("max_num_seqs"),
        y_label=f"Ratio of {column(RATE).in_words}",
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
        draw = partial(_draw_sides, rows=group.rows, named=devices)
        for what, (columns, top) in DRAWN.items():
            title = f"{group.title * (len(groups) > 1)}\n{what}".strip()
            panels.append(Panel(title, partial(draw, columns=columns, top=top)))
        last = group.rows.iloc[-1]
        clocks += [f"{last[f'gpu_{side}']}: lowest {last[f'sm_clock_mhz_min_{side}']:,.0f} MHz." for side in "ab"]
    return Plot(
        title="How often the power limit lowers the clocks, and how far",
        alt=" ".join(clocks),
        panels=panels,
        x_label=knob_axis("max_num_seqs"),
        handles=mark_handles({name: devices[name] for name in named}),
        panel_height_in=2.0,
    )


def _draw_ratios(ax: Axes, rows: pd.DataFrame, references: Iterable[Reference]) -> None:
    drawn = [rows["ratio"]]
    for reference in references:
        for value in rows[reference.column].dropna().unique():
            ax.axhline(value, color=reference.color, linestyle=reference.style, linewidth=1.2)
        drawn.append(rows[reference.column])
    if rows["predicted_ratio"].notna().any():
        low, high = (rows[f"predicted_ratio_{end}"].fillna(rows["predicted_ratio"]) for end in ("low", "high"))
        ax.fill_between(rows["x"], low, high, color=_PREDICTED_COLOUR, alpha=0.25, linewidth=0)
        ax.plot(rows["x"], rows["predicted_ratio"], color=_PREDICTED_COLOUR, linewidth=1)
        drawn += [low, high]
    ax.vlines(rows["x"], rows["ratio_low"], rows["ratio_high"], color=INK, linewidth=1.5)
    ax.plot(rows["x"], rows["ratio"], color=INK, marker="o")
    ends = rows[["ratio_low", "ratio_high"]].to_numpy()
    mark_cells(ax, rows["x"], rows["ratio"], rows["cell_id"], "ratio", ends=ends)
    for name, look in (("device_ratio", _WITHOUT_WAITING), ("steady_ratio", _WHILE_FULL)):
        if rows[name].notna().any():
            ax.plot(rows["x"], rows[name], color=INK, **look)
            drawn.append(rows[name])
    log2_axis(ax, rows["x"].unique())
    # An interval that is wider than everything else ends at the edge.
    values = np.concatenate([column.to_numpy(dtype=float) for column in drawn])
    bottom, top = np.nanmin([*values, 1]), np.nanmax([*values, 1])
    margin = (top - bottom) / 2
    ends = np.clip(rows[["ratio_low", "ratio_high"]].to_numpy(dtype=float).ravel(), bottom - margin, top + margin)
    ax.set_ylim(np.nanmin([bottom, *ends]) - 0.05, np.nanmax([top, *ends]) + 0.05)
    ax.axhline(1, color=MUTED, linewidth=0.8, zorder=0)


def _draw_sides(
    ax: Axes, rows: pd.DataFrame, named: Mapping[str, Mark], columns: Sequence[str], top: float | None
) -> None:
    """Draw columns of both devices, the first with filled marks on a solid line."""
    for side in "ab":
        mark = named[rows[f"gpu_{side}"].iloc[0]]
        for name, look in zip(columns, _LOOKS, strict=False):
            ax.plot(
                rows["x"], column(name).scaled(rows[f"{name}_{side}"]), color=mark.color, marker=mark.marker, **look
            )
    log2_axis(ax, rows["x"].unique())
    ax.set_ylim(0, top or 1.05 * ax.get_ylim()[1])


def speedups(tables: Tables) -> Iterator[tuple[str, str, str]]:
    """For each pair of devices the ratios at the lowest and the highest number of sequences, a sentence, and why.

    The first screen has the sentence. All numbers are from the table `devices`: observed and predicted ratios, the
    ratios of the bandwidths, and the predicted share of the time in which the slower device reads weights. A power
    limit is named if it was reached in half of the samples.
    """
    seen = set()
    for group in groups_by_sequences(tables):
        if group.keys["gpu"] not in seen:
            seen.add(group.keys["gpu"])
            beside = _bandwidths(records(group.rows)[0])
            comparison = f"{group.keys['gpu']}: {ratios_in_words(group.rows)}{beside}."
            ends = "{:.2f} to {:.2f}".format(*group.rows["ratio"].iloc[[0, -1]])
            yield ends, comparison, _limited(group.rows) + _why(group.rows)


def ratios_in_words(rows: pd.DataFrame) -> str:
    """The ratios by number of sequences, over whole repeats and while both devices are full, with their intervals."""
    whole, full = _by_sequences(rows, "ratio"), _by_sequences(rows, "steady_ratio")
    return f"{whole}, over whole repeats" + f"; while full {full}" * bool(full)


def _by_sequences(rows: pd.DataFrame, ratio: str) -> str:
    """The known ratios of a column; the first one says what the numbers are."""
    known = records(rows.dropna(subset=ratio))
    words = [" times", plural(int(known[0]["x"]), "sequence"), "95 % interval "] if known else []
    texts = []
    for row in known:
        times, at, interval = words if row is known[0] and ratio == "ratio" else ("", number(row["x"]), "")
        ends = span([row[f"{ratio}_low"], row[f"{ratio}_high"]])
        texts.append(f"{row[ratio]:.2f}{times} at {at}" + f" ({interval}{ends})" * bool(ends))
    return ", ".join(texts)


def _why(rows: pd.DataFrame) -> str:
    if rows["weights_share_b"].isna().all():
        return ""
    of_time = rows.iloc[[0, -1]]
    shares = listed(
        f"{100 * share:.0f} % at {x:g}" for share, x in zip(of_time["weights_share_b"], of_time["x"], strict=True)
    )
    return f" It is predicted that reading weights takes {shares} of the time on {rows['gpu_b'].iloc[0]}."


def _limited(rows: pd.DataFrame) -> str:
    last = records(rows.tail(1))[0]
    if limited := [side for side in "ab" if last[f"power_cap_share_{side}"] >= MUCH_AT_POWER_LIMIT]:
        shares = listed(f"{100 * last[f'power_cap_share_{x}']:.0f} % ({last[f'gpu_{x}']})" for x in limited)
        clocks = [last[f"sm_clock_mhz_median_{side}"] for side in limited]
        median = "" if pd.isna(clocks).any() else f"; the median clock is {listed(f'{of:,.0f}' for of in clocks)} MHz"
        return f" At {number(last['x'])} the power limit lowers clocks in {shares} of the samples{median}."
    return ""


def _bandwidths(row: Mapping[str, Any]) -> str:
    named = {"bandwidth_ratio": "data sheets", "measured_bandwidth_ratio": "measured"}
    bandwidths = [f"{row[of]:.2f} ({source})" for of, source in named.items() if pd.notna(row[of])]
    return f"; memory bandwidths differ by {listed(bandwidths)}" if bandwidths else ""


def device_ratios(tables: Tables) -> Plot:
    with suppress(MissingError):
        return _plot_by_sequences(groups_by_sequences(tables))
    ratios = require(of_rates(tables.need("devices")), "no two devices were measured with the same settings")
    rows = labelled(ratios, ["engine", "model", "workload"], "knobs")
    return plot_ratios(
        rows.assign(
            name=OBSERVED, panel=ratios["gpu_a"] + " over " + ratios["gpu_b"], beside=ratios["kv_tokens_ratio"]
        ),
        {OBSERVED: Mark(COLOURS[0], "o")},
        title="Speed-up of one device over another, beside the ratios of their rates",
        panels_are="pairs of devices",
        repeats=("repeats_a", "repeats_b"),
        references=_REFERENCES,
    )


def expectations(report: Report) -> Iterator[Block]:
    findings = [Finding(ratios, comparison + why) for ratios, comparison, why in speedups(report.tables)]
    for group in groups_by_sequences(report.tables):
        rows = group.rows.dropna(subset="predicted_ratio")
        if len(rows):
            off, by_bandwidths, own = (f"{rows[f'{of}_error_pct'].abs().max():.1f} %" for of in EXPECTED)
            cells = plural(len(rows), f"{rows['engine'].iloc[0]} cell")
            sentence = (
                f"The step model misses the ratio over whole repeats by at most {off} ({cells}), that of measured "
                f"bandwidths by up to {by_bandwidths}. The model was fitted to one calibration and scaled to the other "
                f"device by measured rates; fitted to both calibrations, it misses by at most {own}. ({group.title})"
            )
            findings.append(Finding(f"at most {off} off", sentence))
    ratios = of_rates(report.tables.need("devices")).dropna(subset="own_predicted_ratio")
    for row in records(ratios[ratios["predicted_ratio"].isna()]):
        sentence = (
            f"{row['gpu_a']} over {row['gpu_b']}, {row['engine']}, {row['workload']}: the ratio is {row['ratio']:.2f}, "
            f"and {row['own_predicted_ratio']:.2f} as predicted from each device by itself."
        )
        findings.append(Finding(f"{row['own_predicted_ratio_error_pct']:+.1f} %", sentence))
    yield from some(findings, "devices")


def explanations(report: Report) -> Iterator[Block]:
    findings = []
    for (a, b), rows in of_rates(report.tables.need("devices")).groupby(["gpu_a", "gpu_b"], sort=False):
        explains = rows["explanation"].fillna("none").map(explained).value_counts()
        verdict = str(explains.index[0]) if len(explains) == 1 and rows["explanation"].ne("none").any() else NOT_DECIDED
        counted = listed(f"{name} in {count}" for name, count in explains.items())
        # Memory bandwidth should explain decoding, so the case with the largest share of decoding is shown.
        example = records(rows.sort_values("decode_share_a", ascending=False).head(1))[0]
        settings = report.setting_of(example, example["knobs"])
        where = f"{example['engine']}, {example['model']}, {example['workload']}, {settings}"
        sentence = (
            f"{a} against {b}: what explains the speed-up of {plural(len(rows), 'cell')}: {counted}. "
            f"For example, {where}: {_in_words(example)}"
        )
        findings.append(Finding(verdict, sentence))
    yield from some(findings, "devices")


def _in_words(row: Mapping[str, Any]) -> str:
    words = with_interval(row, "ratio", f" times the output tokens/s of {row['gpu_b']}")
    if isinstance(row["nearest"], str):
        words += f"; nearest is the ratio of {explained(row['nearest'])}, {row['nearest_difference_pct']:+.1f} %"
    if not isnan(row["decode_share_a"]):
        words += f"; decoding took {100 * row['decode_share_a']:.0f} % of the time on {row['gpu_a']}"
    return f"{words}."


def cannot_show(report: Report) -> Iterator[Block]:
    pairs = report.tables.need("devices")[["gpu_a", "gpu_b", "cannot_show"]].dropna().drop_duplicates()
    for a, b, why in pairs.itertuples(index=False):
        words = f"{a} and {b} cannot show that decoding follows memory bandwidth: {_CANNOT_SHOW[why]}."
        yield Finding("cannot show", words)


SUBJECT = Subject(
    id="devices",
    title="Ratios of devices",
    asked="ratio|GPUs compare",
    parts=[
        FigurePart(device_ratios),
        FigurePart(power_limit),
        TablePart(
            "devices",
            {
                **PAIR,
                "ratio": "Speed-up (95 % interval)",
                "scope": "Interval covers",
                "steady_ratio": "While full",
                "device_ratio": "Without waiting for the host",
                "predicted_ratio": "Predicted from one calibration",
                "predicted_ratio_error_pct": "Error of this prediction",
                "own_predicted_ratio": "Predicted, each from its own device",
                "explanation": "Shown to be within 10 % of",
                "compatible_with": "Also compatible with",
                "nearest_difference_pct": "Error of the nearest ratio",
            },
            f"Ratios of {column(RATE).in_words} over whole repeats",
            lambda ratios: of_rates(ratios).assign(
                explanation=lambda rows: rows["explanation"].map(explained, na_action="ignore"),
                compatible_with=lambda rows: rows["compatible_with"].map(explained, na_action="ignore"),
            ),
        ),
        TablePart(
            "devices",
            {
                **PAIR,
                "bandwidth_ratio": "Memory bandwidth, published",
                "measured_bandwidth_ratio": "Memory bandwidth, measured",
                "flop_ratio": "Matrix rate, published",
                "measured_flop_ratio": "Matrix rate, measured",
                "measured_cache_ratio": "Cache bandwidth, measured",
                "kv_tokens_ratio": column("kv_cache_tokens").label,
            },
            "Ratios of the devices' rates and KV caches",
            of_rates,
        ),
        TablePart(
            "devices",
            {
                **PAIR,
                "power_cap_share_a": "At the power limit, first device",
                "power_cap_share_b": "At the power limit, second device",
                **{f"{share}_b": f"{words}, predicted" for share, words in _SHARES.items()},
            },
            "Shares of the samples at the power limit, and of the time of the second device",
            of_rates,
        ),
        claims_on("devices"),
    ],
    findings=[expectations, explanations, cannot_show],
)
