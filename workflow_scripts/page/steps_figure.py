"""Draw the cells that became faster or slower over time, from the JSON of `kvsweep regress`.

    kvsweep figure-steps --steps steps.json --out figures

It writes `steps.svg` and `steps.png`; if no cell stepped, it deletes those of an earlier call.
"""

from argparse import Namespace
from functools import partial
from math import log
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from workflow_scripts.common.columns import column
from workflow_scripts.common.command import command, option, out
from workflow_scripts.common.files import read_json
from workflow_scripts.page.plot import MAX_PANELS, Panel, Plot, key, ratio_axis, use_style, write_plot
from workflow_scripts.page.style import COLOURS


def steps(over: dict[str, Any]) -> Plot:
    """One panel for each cell that stepped, the largest step first: its runs, and the means before and after steps."""
    stepped = sorted((of for of in over["series"] if of["steps"]), key=lambda of: -max(map(_size, of["steps"])))
    drawn = stepped[:MAX_PANELS]
    parts = list(zip(*([*of["cell"].split("/"), column(of["measure"]).axis] for of in drawn), strict=True))
    shared = [values[0] for values in parts if len(set(values)) == 1 and len(drawn) > 1]
    names = [", ".join(value for value in cell if value not in shared) for cell in zip(*parts, strict=True)]
    few = f", the {len(drawn)} with the largest steps of {len(stepped)}" if len(stepped) > len(drawn) else ""
    return Plot(
        title=", ".join([f"{over['study']}: what became faster or slower{few}", *shared]),
        alt=" ".join(
            f"{name}: {_in_words(step)}." for name, of in zip(names, drawn, strict=True) for step in of["steps"]
        ),
        panels=[
            Panel(name, partial(_draw, of=of, runs=len(over["runs"]))) for name, of in zip(names, drawn, strict=True)
        ],
        x_label="Run; the last one is the present run",
        handles=[
            key("a run", COLOURS[0], linestyle="none", marker="o"),
            key("mean before and after a step, and their ratio", COLOURS[1]),
        ],
        panel_height_in=2.3,
    )


def _size(step: dict[str, Any]) -> float:
    return abs(log(step["found"]["ratio"]))


def _in_words(step: dict[str, Any]) -> str:
    change = step["found"]
    return f"{change['ratio']:.3g} ({change['low']:.3g} to {change['high']:.3g}) from run {step['run'] + 1} on"


def _draw(ax: Axes, of: dict[str, Any], runs: int) -> None:
    scaled = column(of["measure"]).scaled
    values = [scaled(value) for value in of["values"]]
    ax.plot([run + 1 for run in of["runs"]], values, color=COLOURS[0], linestyle="none", marker="o")
    begins = [0.5, *(step["run"] + 0.5 for step in of["steps"]), runs + 0.5]
    means = [of["steps"][0]["found"]["a"], *(step["found"]["b"] for step in of["steps"])]
    ax.stairs(list(map(scaled, means)), begins, baseline=None, color=COLOURS[1], linewidth=1.5)
    ratio_axis(ax, min(values), max(values))
    for step in of["steps"]:
        place = (step["run"] + 0.5, 0.03)
        ax.text(*place, f"{step['found']['ratio']:.3g}", transform=ax.get_xaxis_transform(), ha="right", fontsize=8)
    ax.set_xlim(0.5, runs + 0.5)
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))


@command(
    "figure-steps",
    option("--steps", type=Path, required=True, help="the JSON of `kvsweep regress`"),
    out("folder for the figure"),
)
def main(args: Namespace) -> None:
    over = read_json(args.steps)
    if any(of["steps"] for of in over["series"]):
        use_style()
        write_plot(steps(over), args.out, "steps")
    else:
        for old in args.out.glob("steps.*"):
            old.unlink()
