"""The block tables of the first requests of a workload: how they grow, and which blocks requests share."""

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from typing import NamedTuple

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.patches import Patch, PathPatch
from matplotlib.path import Path

from workflow_scripts.common.wording import plural
from workflow_scripts.page.plot import LINE_IN, Panel, Plot
from workflow_scripts.page.report import FigurePart, Subject
from workflow_scripts.page.style import COLOURS
from workflow_scripts.tables.results import Tables, records

TAKEN = ("allocated", "appended", "shared")
# Requests in a panel, blocks in a row (of longer tables their beginning and their end), and by how many tables grow.
MOST_ROWS, FIRST_PLACES, LAST_PLACES = 8, 6, 8
MOST_GROWTH = 3.5
FULL, PARTLY, SHARED = COLOURS[0], COLOURS[1], COLOURS[3]
LEGEND: Mapping[str, str] = {FULL: "full", PARTLY: "last block, partly filled", SHARED: "held by several requests"}


class Moment(NamedTuple):
    """What requests hold while a step runs: block numbers by request and place, and the tokens in them."""

    step: int
    held: Mapping[int, Mapping[int, int]]
    tokens: Mapping[int, int]

    @property
    def users(self) -> Counter[int]:
        """How many requests hold each block."""
        return Counter(block for table in self.held.values() for block in table.values())


def moment_at(events: pd.DataFrame, step: int) -> Moment:
    """The block tables while a step runs, of the first group of layers."""
    held: dict[int, dict[int, int]] = {}
    last: dict[int, tuple[int, int]] = {}  # step and tokens
    happened = events[(events["step"] <= step) & (events["group"] == 0) & events["request"].notna()]
    for row in records(happened):
        request, place = int(row["request"]), int(row["place"])
        if row["event"] in TAKEN:
            held.setdefault(request, {})[place] = int(row["block"])
            last[request] = int(row["step"]), int(row["tokens"])
        else:
            del held[request][place]
    size = int(events["block_size"].iloc[0])
    running = {request: table for request, table in held.items() if table}
    tokens = {r: min(last[r][1] + step - last[r][0], (max(table) + 1) * size) for r, table in running.items()}
    return Moment(step, running, tokens)


def of_one_cell(blocks: pd.DataFrame) -> pd.DataFrame:
    """The events of the cell whose first requests share the most blocks, or of the first cell if none do."""
    shared = blocks[(blocks["event"] == "shared") & (blocks["request"] < MOST_ROWS)].groupby("cell_id").size()
    return blocks[blocks["cell_id"] == (shared.idxmax() if len(shared) else blocks["cell_id"].iloc[0])]


def first_requests(events: pd.DataFrame) -> pd.DataFrame:
    """The events of the first requests; if these share no blocks, of the first whose tables can be drawn whole."""
    first = events[events["request"] < MOST_ROWS]
    taken = events[events["event"].isin(TAKEN)]
    at_first = taken["step"] == taken.groupby("request")["step"].transform("min")
    blocks = taken[at_first].groupby("request").size()
    short = blocks.index[blocks + MOST_GROWTH < FIRST_PLACES + LAST_PLACES][:MOST_ROWS]
    shares = (first["event"] == "shared").any()
    return first if shares or len(short) < MOST_ROWS else events[events["request"].isin(short)]


class Square(NamedTuple):
    """A block at a place of a drawn table: `share` of it is filled, `row` is that of its request."""

    row: int
    place: int
    block: int
    share: float
    colour: str


def squares_of(moment: Moment, size: int, requests: Sequence[int]) -> list[Square]:
    users, found = moment.users, []
    for row, request in enumerate(requests):
        for place, block in moment.held.get(request, {}).items():
            share = min(1.0, moment.tokens[request] / size - place)
            colour = SHARED if users[block] > 1 else FULL if share == 1 else PARTLY
            found.append(Square(row, place, block, share, colour))
    return found


def moments_of(events: pd.DataFrame) -> list[Moment]:
    """Three steps: the first of the drawn requests, one at most `MOST_GROWTH` blocks later, and one between.

    The last is not after the step in which these requests hold the most blocks.
    """
    drawn = first_requests(events)
    held = drawn["event"].isin(TAKEN).map({True: 1, False: -1}).groupby(drawn["step"]).sum().cumsum()
    steps = held.index.astype(int)
    fullest = steps[int(held.argmax()) + 1] - 1  # in the end all blocks are given back
    last = min(fullest, steps[0] + int(MOST_GROWTH * events["block_size"].iloc[0]))
    return [moment_at(events, step) for step in dict.fromkeys((steps[0], (steps[0] + last) // 2, last))]


def block_tables(tables: Tables) -> Plot:
    events = of_one_cell(tables.need("blocks"))
    size = int(events["block_size"].iloc[0])
    requests = sorted(map(int, first_requests(events)["request"].dropna().unique()))
    drawn = [(moment, squares_of(moment, size, requests)) for moment in moments_of(events)]
    longest = 1 + max(square.place for _, squares in drawn for square in squares)
    name = ", ".join(events["cell_id"].iloc[0].split("/")[:-1])
    short = "" if requests[-1] < MOST_ROWS else " with short prompts"
    notes = [f"the first {len(requests)} requests{short} of {name}, with blocks of {size} tokens"]
    places = list(range(longest))
    if longest > FIRST_PLACES + LAST_PLACES:
        places[FIRST_PLACES:-LAST_PLACES] = []
        some = f"the first {FIRST_PLACES} and last {LAST_PLACES} are drawn"
        notes.append(f"of tables with up to {longest} places, {some}")
    draw = partial(_draw, requests=requests, places=places)
    colours = {square.colour for _, squares in drawn for square in squares if square.place in places}
    return Plot(
        title="Block tables of the first requests",
        alt=" ".join(_in_words(moment, squares, requests) for moment, squares in drawn),
        sources=["predicted"],
        panels=[Panel(f"step {moment.step}", partial(draw, squares=squares)) for moment, squares in drawn],
        x_label="Place in the block table",
        y_label="Request",
        handles=[Patch(color=colour, label=name) for colour, name in LEGEND.items() if colour in colours],
        notes=notes,
        panel_height_in=LINE_IN * 1.3 * MOST_ROWS + 0.7,
    )


def _draw(ax: Axes, squares: Sequence[Square], requests: Sequence[int], places: Sequence[int]) -> None:
    font_pt = 6.5 if max((square.block for square in squares), default=0) < 1000 else 4.8
    filled: dict[str, list[Path]] = {}
    outlines: dict[str, list[Path]] = {}
    at = {place: x + (place != x) for x, place in enumerate(places)}  # a gap where places are left out
    for row, place, block, share, colour in squares:
        if place not in at:
            continue
        filled.setdefault(colour, []).append(_rectangle(at[place], row, share))
        outlines.setdefault(colour, []).append(_rectangle(at[place], row, 1))
        if share == 1:
            ax.text(at[place], row, str(block), ha="center", va="center", fontsize=font_pt, color="white")
    # One path per colour: a separate square for each block would make the page several times as large.
    for colour, paths in filled.items():
        ax.add_patch(PathPatch(Path.make_compound_path(*paths), facecolor=colour, linewidth=0))
        ax.add_patch(PathPatch(Path.make_compound_path(*outlines[colour]), fill=False, edgecolor=colour))
    ax.set_xlim(-0.5, max(at.values()) + 0.5)
    ax.set_ylim(MOST_ROWS - 0.5, -0.5)
    ax.grid(visible=False)
    ax.set_xticks(list(at.values())[::2], [str(place) for place in places[::2]])
    ax.set_yticks(range(len(requests)), map(str, requests))


def _rectangle(place: int, row: int, share: float) -> Path:
    left, top = place - 0.44, row - 0.4
    right, bottom = left + 0.88 * share, top + 0.8
    return Path([(left, top), (right, top), (right, bottom), (left, bottom), (left, top)], closed=True)


def _in_words(moment: Moment, squares: Sequence[Square], requests: Sequence[int]) -> str:
    blocks = {square.block for square in squares}
    shared = len({square.block for square in squares if square.colour == SHARED})
    entries = plural(len(squares), "block number")
    held = moment.held.keys() & set(requests)
    tokens = sum(moment.tokens[request] for request in held)
    return (
        f"Step {moment.step}: {plural(len(held), 'request')} with {plural(tokens, 'token')}; block tables with "
        f"{entries} of {plural(len(blocks), 'block')}; shared by several requests: {shared}."
    )


SUBJECT = Subject(id="block-tables", title="Block tables, step by step", parts=[FigurePart(block_tables)])
