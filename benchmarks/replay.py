"""Replay complete grids: does a study that measures only what it chooses answer as the whole grid does?

    make bench-replay             (or: python -m benchmarks.replay [--replays 10] [--seed 1] [--time-pct 25])

A replay reveals the starts of a cell as they are chosen, until every question is answered or the share of the grid's
device time is spent. The synthetic grid has 700 cells (4 GPUs, 5 block sizes, 7 limits of sequences, 5 workloads) by
the project's model of step times. Its plan has costs that are wrong by some per cent and none of the three surprises: a
step of more sequences than were captured is slower on some GPUs, a workload preempts on one, a block size is slow on
one. Which ones is drawn for each replay. Complete studies under results/ with a file in config/studies/ are replayed
too, with other check cells each time.

The tables of the whole grid are the truth: recommendations, verdicts of all pairs, ratios of devices. A verdict that
they leave undecided is not counted. An answer is wrong if it is shown and contradicts them by more than the margin: a
surprise was missed. The exit code is 1 if a goal is missed.
"""

import argparse
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd
from rich.console import Console
from rich.progress import track
from rich.table import Table

from workflow_scripts.catalog.gpus_and_models import get_model, load_gpus
from workflow_scripts.common.checkout import CHECKOUT
from workflow_scripts.common.command import run_command
from workflow_scripts.physics.model_facts import read_model_facts
from workflow_scripts.physics.step_time import StepCosts, StepWork, segment_times_s
from workflow_scripts.predict.prediction_record import FIELDS
from workflow_scripts.questions.choose.choose_cells import choose
from workflow_scripts.questions.choose.estimates import CHECK, Estimates, check_cells, estimate
from workflow_scripts.questions.choose.open_questions import DEVICES, KNOBS, MEMORY, RECOMMENDATION, Question, ask
from workflow_scripts.questions.devices.table import device_ratios
from workflow_scripts.questions.knobs.pairs import compared_pairs
from workflow_scripts.questions.recommendations.table import BEST, recommendations
from workflow_scripts.statistics.comparisons import CHANGES, FLAT, NOT_DECIDED, log_margin
from workflow_scripts.statistics.further_starts import Looks
from workflow_scripts.statistics.summary import RATE, cell_summary, comparable_rows
from workflow_scripts.statistics.variation import known_elsewhere
from workflow_scripts.study.study_file import load_study
from workflow_scripts.tables.measurements import FRAME_COLUMNS, joined

GPUS, MODEL = ("h200", "h100-sxm", "a100-pcie-80gb", "l40s"), "llama-3.1-8b-instruct"
BLOCKS, SEQS = (8, 16, 32, 64, 128), (1, 4, 16, 32, 64, 128, 256)
# Tokens of the prompts and answers of REQUESTS requests.
WORKLOADS = {"chat": (200, 200), "context": (1500, 200), "reasoning": (200, 800), "code": (800, 400), "short": (64, 64)}
REQUESTS, REPEATS, STARTS, AT_LEAST, START_S = 512, 3, 5, 2, 60.0
# Standard deviations of logarithms: of a start and of a round, as on GPUs (config/variation.yaml), and of each cost of
# the plan. The plan's band is about two of the latter.
START_SD, ROUND_SD = (known_elsewhere(False, "")[n] ** 0.5 for n in (0, 2))
COST_SD, BAND_PCT = 0.05, 10.0
MARGIN_PCT, CHECK_PCT = 5.0, 10.0
LEAST_SAME, LEAST_COVERED = 0.95, 0.9


@dataclass(frozen=True)
class Grid:
    """A grid whose cells were all measured: its plan, its cells table, and the study's margin and bound."""

    plan: pd.DataFrame
    cells: pd.DataFrame
    margin_pct: float
    starts: int
    at_least: int
    tpot_p99_s: float | None = None


@dataclass(frozen=True)
class Truth:
    """What the tables of the whole grid say: rates by cell, the best cell of each place, verdicts by place and knob,
    and the logarithms of the mean ratios of devices, by engine and model and by devices."""

    rates: pd.Series
    best: dict[str, str]
    verdicts: dict[tuple[str, str], str]
    ratios: dict[tuple[str, str], float]


@dataclass(frozen=True)
class Replayed:
    """Results of one replay: shares of answers that are as in the whole grid, by kind (NaN if nothing was asked);
    numbers of wrong and of shown answers and of questions; and the share of check cells within their bands."""

    same: dict[str, float]
    wrong: int
    answered: int
    asked: int
    time_share: float
    covered: float
    rounds: int
    seconds: float

    @property
    def all_same(self) -> bool:
        return all(np.isnan(share) or share == 1 for share in self.same.values())


def synthetic(rng: np.random.Generator, noise: np.random.Generator) -> Grid:
    """A grid of 700 cells with three surprises that its plan does not have; `noise` is drawn for each of its starts."""
    keys = pd.DataFrame(list(product(GPUS, WORKLOADS, SEQS, BLOCKS)), columns=["gpu", "workload", "seqs", "block"])
    keys["knobs"] = "bs" + keys["block"].astype(str) + "-seqs" + keys["seqs"].astype(str)
    keys["cell_id"] = keys["gpu"] + f"/vllm/{MODEL}/" + keys["workload"] + "/" + keys["knobs"]
    true, planned = np.zeros(len(keys)), np.zeros(len(keys))
    for gpu in GPUS:
        of = (keys["gpu"] == gpu).to_numpy()
        costs = _costs(gpu)
        wrong = {
            name: getattr(costs, name) * float(np.exp(rng.normal(0, COST_SD)))
            for name in costs.model_dump(exclude={"launch", "overlap"})
        }
        true[of], planned[of] = _wall_s(keys[of], costs), _wall_s(keys[of], costs.model_copy(update=wrong))
    slower, preempts = _surprises(keys, rng)
    output_tokens = keys["workload"].map(lambda name: REQUESTS * WORKLOADS[name][1]).to_numpy(dtype=float)
    rate, band = output_tokens / planned, 1 + BAND_PCT / 100
    plan = keys[["cell_id", "gpu", "workload", "knobs"]].assign(
        engine="vllm",
        model=MODEL,
        output_tokens_per_s=rate,
        output_tokens_per_s_low=rate / band,
        output_tokens_per_s_high=rate * band,
        error_pct=BAND_PCT,
        cell_s=START_S + (REPEATS + 1) * planned,
        gpus=1.0,
        preemptions=0.0,
    )
    cells = _cells(keys, true * slower, output_tokens, preempts, noise)
    return Grid(plan.reindex(columns=list(FIELDS)), cells, MARGIN_PCT, STARTS, AT_LEAST)


def _costs(gpu: str) -> StepCosts:
    device = load_gpus()[gpu]
    memory, flop = device.memory_bandwidth_bytes_per_s, device.peak_flop_per_s("bfloat16")
    assert memory
    assert flop
    return StepCosts(
        weight_bytes=1 / (0.85 * memory),
        kv_bytes=1 / (0.7 * memory),
        matrix_flops=1 / (0.6 * flop),
        steps=5e-4,
        layers=1e-5,
        sequences=1e-5,
        prompts=1e-4,
    )


def _wall_s(keys: pd.DataFrame, costs: StepCosts) -> np.ndarray:
    """Time of a repeat: batches decode until all their requests end; before that each prompt takes a step."""
    facts = read_model_facts(get_model(MODEL).config, "bfloat16", None)
    prompt, output = np.array([WORKLOADS[name] for name in keys["workload"]], dtype=float).T
    seqs = keys["seqs"].to_numpy(dtype=float)
    weights, layers = facts.decode_weight_bytes, 32.0
    kv_bytes = 131_072 * seqs * (prompt + output / 2)
    decode = {
        "weight_bytes": weights,
        "kv_bytes": kv_bytes,
        "matrix_flops": weights * seqs,
        "layers": layers,
        "sequences": seqs,
    }
    prefill = {"weight_bytes": weights, "matrix_flops": weights * prompt, "layers": layers, "prompts": 1.0}
    steps = np.ceil(REQUESTS / seqs) * output, np.full(len(keys), float(REQUESTS))
    return sum(
        segment_times_s(StepWork.of(n, work, {}), costs) for n, work in zip(steps, (decode, prefill), strict=True)
    )


def _surprises(keys: pd.DataFrame, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """How many times as long as by the model each cell takes, and which cells preempt."""
    captured, without_graphs = rng.choice([64, 128]), rng.choice(GPUS, 2, replace=False)
    cliff = (keys["seqs"] > captured) & keys["gpu"].isin(without_graphs)
    preempts = (
        (keys["gpu"] == rng.choice(GPUS)) & (keys["workload"] == rng.choice(list(WORKLOADS))) & (keys["seqs"] > 64)
    )
    slow_block = (keys["gpu"] == rng.choice(GPUS)) & (keys["block"] == rng.choice(BLOCKS))
    times = [np.where(where, rng.uniform(1.12, 1.4), 1.0) for where in (cliff, preempts, slow_block)]
    return np.prod(times, axis=0), preempts.to_numpy()


def _cells(
    keys: pd.DataFrame, wall_s: np.ndarray, output_tokens: np.ndarray, preempts: np.ndarray, rng: np.random.Generator
) -> pd.DataFrame:
    """The cells table: STARTS rounds of all cells, each with an effect on all cells of a GPU."""
    rounds = dict(zip(GPUS, rng.normal(0, ROUND_SD, (len(GPUS), STARTS)), strict=True))
    starts = []
    for start in range(STARTS):
        noise = keys["gpu"].map(lambda gpu, start=start: rounds[gpu][start]) + rng.normal(0, START_SD, len(keys))
        rate = output_tokens / wall_s * np.exp(noise)
        starts.append(keys.assign(start=start + 1, round=start + 1, output_tokens_per_s=rate, total_tokens_per_s=rate))
    table = pd.concat(starts, ignore_index=True).rename(
        columns={"seqs": "knob_max_num_seqs", "block": "knob_block_size"}
    )
    table = table.assign(
        **{"study": "synthetic", "source": "measured", "engine": "vllm", "model": MODEL, "dtype": "bfloat16"},
        **{"outcome": "ok", "comparable": True, "repeat": 0, "num_requests": REQUESTS},
        max_concurrency_allowed=table["knob_max_num_seqs"],
        output_tokens=np.tile(output_tokens, STARTS),
        prompt_tokens=np.tile(keys["workload"].map(lambda name: REQUESTS * WORKLOADS[name][0]), STARTS),
        preemptions=np.tile(preempts.astype(int) * 10, STARTS),
    )
    table = table.reindex(columns=[*FRAME_COLUMNS, "knob_block_size", "knob_max_num_seqs"])
    return table.astype({name: str(FRAME_COLUMNS[name].dtype) for name in FRAME_COLUMNS})


def of_results(name: str, results: Path) -> Grid | None:
    """The grid of a complete study in a folder of results; None if it was not measured there."""
    tables = ("plan/plan", "tables/cells", "tables/starts", "tables/repeats")
    files = [results / name / f"{table}.parquet" for table in tables]
    if not all(file.exists() for file in files):
        return None
    study = load_study(CHECKOUT / "config" / "studies" / f"{name}.yaml")
    plan, *measured = map(pd.read_parquet, files)
    cells = joined(*measured)
    cells = cells[cells["cell_id"].isin(plan["cell_id"]) & (cells["study"] == name)]
    starts = round(comparable_rows(cells).groupby("cell_id")["start"].nunique().mean())
    at_least = min(starts, study.starts.at_least)
    return Grid(plan, cells, study.equivalence_margin_pct, starts, at_least, study.slo.tpot_s if study.slo else None)


def truth_of(grid: Grid) -> Truth:
    summary, _ = cell_summary(grid.cells, RATE)
    rates = summary.set_index("cell_id")["log_mean"]
    recommended = recommendations(grid.cells, grid.margin_pct, {}, grid.tpot_p99_s)
    role = BEST if grid.tpot_p99_s is None else "best_within_latency"
    rows = recommended[recommended["role"].eq(role) & recommended["cell_id"].notna()]
    best = {f"{row.gpu}, vllm, {row.model}, {row.workload}": str(row.cell_id) for row in rows.itertuples()}
    verdicts: dict[tuple[str, str], set[str]] = {}
    for column, cells, pairs in compared_pairs(grid.cells, grid.margin_pct, Looks(grid.starts, grid.starts)):
        places = cells[["gpu", "engine", "model", "workload"]].agg(", ".join, axis=1).to_numpy()
        for place, verdict in zip(places[pairs["a"]], pairs["verdict"], strict=True):
            verdicts.setdefault((place, column.removeprefix("knob_")), set()).add(str(verdict))
    ratios = device_ratios(grid.cells)
    ratios = ratios[ratios["metric"] == RATE]
    places, pairs = ratios["engine"] + ", " + ratios["model"], ratios["gpu_a"] + " / " + ratios["gpu_b"]
    of_pairs = np.log(ratios["ratio"].astype(float)).groupby([places, pairs]).mean()
    return Truth(rates, best, {key: _of_all(of) for key, of in verdicts.items()}, of_pairs.to_dict())


def _of_all(verdicts: set[str]) -> str:
    return CHANGES if CHANGES in verdicts else FLAT if verdicts == {FLAT} else NOT_DECIDED


def replay(grid: Grid, truth: Truth, seed: int, time_share: float) -> Replayed:
    """Measure what is chosen until all is answered or the time is spent, and compare with the whole grid."""
    began = time.monotonic()
    check = check_cells(grid.plan, CHECK_PCT, f"replay {seed}")
    # The starts of each cell that are revealed; `nth` counts those of the grid.
    starts, rounds = dict.fromkeys(grid.plan["cell_id"], 0) | dict.fromkeys(check, grid.at_least), 0
    nth = grid.cells.groupby("cell_id")["start"].rank(method="dense")
    while True:
        of_cell = grid.cells["cell_id"].map(starts)
        missing = grid.cells[of_cell.eq(0)].drop_duplicates("cell_id").assign(outcome="missing")
        cells = pd.concat([grid.cells[(nth <= of_cell) | (nth.isna() & (of_cell > 0))], missing], ignore_index=True)
        estimates = estimate(grid.plan, cells, check, seed)
        questions = ask(estimates, grid.plan, cells, grid.margin_pct, tpot_p99_s=grid.tpot_p99_s)
        cost_s = estimates.table["cost_s"]
        spent_s, total_s = float((cost_s * pd.Series(starts)).sum()), float(cost_s.sum()) * grid.starts
        left_s = max(0.0, time_share * total_s - spent_s)
        choice = choose(estimates, questions, starts, left_s, grid.at_least, grid.starts)
        if choice.ended:
            break
        for cell in choice.cells:
            starts[cell] = max(grid.at_least, starts[cell] + 1)
        rounds += 1
    return compared(grid, truth, questions, estimates, spent_s / total_s, rounds, time.monotonic() - began)


def compared(
    grid: Grid,
    truth: Truth,
    questions: Sequence[Question],
    estimates: Estimates,
    time_share: float,
    rounds: int,
    seconds: float,
) -> Replayed:
    """The answers beside those of the whole grid, and how well bands hold for the check cells."""
    margin = log_margin(grid.margin_pct)
    same: dict[str, list[bool]] = {RECOMMENDATION: [], KNOBS: [], DEVICES: []}
    wrong = 0
    for question in questions:
        if question.kind == MEMORY:
            continue
        is_same = _is_same(question, truth, margin)
        if is_same is not None:
            same[question.kind].append(is_same)
            wrong += question.is_answered and not is_same
    table = estimates.table[estimates.table["state"] == CHECK]
    rate = np.exp(table["log_measured"])
    return Replayed(
        {kind: float(np.mean(shares)) if shares else float("nan") for kind, shares in same.items()},
        wrong,
        sum(question.is_answered for question in questions),
        len(questions),
        time_share,
        float(((table["low"] <= rate) & (rate <= table["high"])).mean()),
        rounds,
        seconds,
    )


def _is_same(question: Question, truth: Truth, margin: float) -> bool | None:
    """Whether an answer is that of the whole grid, within the margin; None if this has none."""
    if question.kind == RECOMMENDATION:
        best = truth.best.get(question.place)
        return None if best is None else bool(truth.rates[best] - truth.rates.get(question.answer, -np.inf) <= margin)
    if question.kind == KNOBS:
        verdict = truth.verdicts.get((question.place, question.subject), NOT_DECIDED)
        return None if verdict == NOT_DECIDED else question.answer == verdict
    reverse = " / ".join(reversed(question.subject.split(" / ")))
    inverse = truth.ratios.get((question.place, reverse), np.nan)
    ratio = truth.ratios.get((question.place, question.subject), -inverse)
    return bool(abs(question.values.mean() - ratio) <= margin)


def replays(name: str, results: Path, count: int, seed: int, time_share: float) -> Iterator[Replayed]:
    """Replays of one grid; the synthetic one is another in each."""
    grid = None if name == "synthetic" else of_results(name, results)
    truth = truth_of(grid) if grid else None
    for number in range(count):
        of_replay = grid or _synthetic(seed, number)
        yield replay(of_replay, truth or truth_of(of_replay), seed + number, time_share)


def _synthetic(seed: int, number: int, occasion: int = 0) -> Grid:
    """The grid of a replay, measured on one of several occasions."""
    return synthetic(np.random.default_rng([seed, number]), np.random.default_rng([seed, number, 1 + occasion]))


def agrees_with_itself(seed: int, number: int) -> bool:
    """Whether the tables of a synthetic grid say the same if all of it is measured once more: no choice of cells can
    do better."""
    truth, again = (truth_of(_synthetic(seed, number, occasion)) for occasion in (0, 1))

    def is_same(kind: str, place: str, subject: str, answer: str, value: float = 0.0) -> bool:
        asked = Question(kind, place, subject, answer, 1.0, True, np.array([value]))
        return _is_same(asked, truth, log_margin(MARGIN_PCT)) is not False

    return (
        all(is_same(RECOMMENDATION, place, "", cell) for place, cell in again.best.items())
        and all(is_same(KNOBS, *of, verdict) for of, verdict in again.verdicts.items())
        and all(is_same(DEVICES, *of, "", ratio) for of, ratio in again.ratios.items())
    )


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Replay complete grids with only the chosen cells measured.")
    parser.add_argument("--replays", type=int, default=10, help="of each grid (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="of grids and check cells (default: %(default)s)")
    parser.add_argument("--time-pct", type=float, default=25.0, help="share of the device time (default: %(default)s)")
    parser.add_argument("--grids", nargs="+", default=["synthetic", "demo", "two_gpus"], help="default: %(default)s")
    parser.add_argument("--results", type=Path, default=CHECKOUT / "results", help="folder of studies")
    parser.add_argument("--again", action="store_true", help="only count whole synthetic grids that repeat themselves")
    args = parser.parse_args(argv)
    if args.again:
        alike = sum(agrees_with_itself(args.seed, number) for number in range(args.replays))
        print(f"{alike} of {args.replays} whole grids say the same if they are measured once more")
        return 0
    table = Table("grid", "replays", "time", "recommended", "verdicts", "ratios", "all the same", box=None)
    for heading in ("answered", "wrong answers", "check cells in band", "rounds", "seconds", ""):
        table.add_column(heading)
    fits = True
    for name in args.grids:
        if name != "synthetic" and of_results(name, args.results) is None:
            continue
        found = replays(name, args.results, args.replays, args.seed, args.time_pct / 100)
        row, of_grid = _row(name, list(track(found, name, args.replays, console=Console(stderr=True))))
        fits &= of_grid
        table.add_row(*row)
    Console(width=160).print(table)
    return 0 if fits else 1


def _row(name: str, replayed: Sequence[Replayed]) -> tuple[list[str], bool]:
    def mean(value: Callable[[Replayed], float]) -> float:
        values = [value(one) for one in replayed]
        return float("nan") if np.isnan(values).all() else float(np.nanmean(values))

    shares = {kind: mean(lambda one, kind=kind: one.same[kind]) for kind in (RECOMMENDATION, KNOBS, DEVICES)}
    covered, wrong = mean(lambda one: one.covered), sum(one.wrong for one in replayed)
    fits = bool(np.nanmin([*shares.values()]) >= LEAST_SAME) and not wrong and covered >= LEAST_COVERED
    return [
        *(name, str(len(replayed)), _pct(mean(lambda one: one.time_share)), *map(_pct, shares.values())),
        *(_pct(mean(lambda one: one.all_same)), _pct(mean(lambda one: one.answered / one.asked)), str(wrong)),
        *(_pct(covered), f"{mean(lambda one: one.rounds):.1f}", f"{mean(lambda one: one.seconds):.0f}"),
        "" if fits else "missed",
    ], fits


def _pct(share: float) -> str:
    return "" if np.isnan(share) else f"{100 * share:.1f} %"


if __name__ == "__main__":
    run_command(main)
