"""Summaries of the tables' verdicts: the headlines of the page, each in the words of its table."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pandas as pd

from workflow_scripts.engines.knobs import every_knob
from workflow_scripts.present.blocks import Block, Command, Finding, Findings, Fold, Text, shown
from workflow_scripts.present.report import Report
from workflow_scripts.present.report_tables import MissingError, Tables, records
from workflow_scripts.present.series import evenly, without_shared

# Maximum number of sentences of one kind; the table has all of them.
MOST_SENTENCES = 6
# A smaller error of a KV cache prediction may come from other data in the device's memory.
WITHIN_PCT = 1.0
TONES: Mapping[str, str] = {
    "flat": "good",
    "changes": "neutral",
    "holds": "good",
    "possible": "good",
    "supported": "good",
    "contradicted": "bad",
    "refuted": "bad",
    "impossible": "bad",
    "exceeds": "bad",
}
# Knobs whose comparisons are listed one by one, with what the engine reports about them.
PREFIX_CACHING, DRAFTED_TOKENS, MODEL = "enable_prefix_caching", "num_speculative_tokens", "model"
ROLES: Mapping[str, str] = {
    "best_throughput": "Highest throughput",
    "best_within_latency": "Highest throughput within a latency",
    "smallest_within_margin": "Smallest setting that is as fast",
}


def knobs(report: Report) -> Iterator[Block]:
    """For each knob the verdicts over all of its values, and the largest change."""
    effects = report.tables.need("effects")
    told_apart = effects["knob"].isin([PREFIX_CACHING, DRAFTED_TOKENS, MODEL])
    overall = effects[(effects["comparison"] == "overall") & ~told_apart]
    findings = []
    for knob, rows in overall.groupby("knob", sort=False):
        counts = rows["verdict"].value_counts()
        largest = records(rows.sort_values("ratio", ascending=False).head(1))[0]
        verdict = str(counts.index[0]) if len(counts) == 1 else "mixed"
        counted = ", ".join(f"{count} {name}" for name, count in counts.items())
        of_several = f"{str(knob).replace('_', ' ')}, {len(rows)} comparisons: {counted}. Largest: "
        sentence = (of_several if len(rows) > 1 else "") + f"{largest['explanation']} ({_place(largest)})"
        findings.append(Finding(verdict, sentence, TONES.get(verdict, "neutral")))
    if findings:
        yield Findings(
            findings,
            "Verdicts are on output tokens per second, within the margin that a sentence names. Intervals cover what "
            "varies between repeats in one start of an engine, not between starts, days or cards of one type.",
        )


def prefix_caching(report: Report) -> Iterator[Block]:
    """The effect of the prefix cache on each workload, and its hits."""
    yield _pairs(report, PREFIX_CACHING, "prefix_cache_hit_rate", _found_in_cache)


def _found_in_cache(cell: Mapping[str, Any]) -> str:
    return (
        f"{100 * cell['prefix_cache_hit_rate']:.3g} % of the prompt tokens were in the cache, so "
        f"{cell['prefix_cache_saved_pct']:.3g} % of all tokens were not computed."
    )


def speculation(report: Report) -> Iterator[Block]:
    """The effect of speculative decoding, and how many drafted tokens were accepted."""
    yield _pairs(report, DRAFTED_TOKENS, "draft_acceptance_rate", _accepted)


def _accepted(cell: Mapping[str, Any]) -> str:
    return (
        f"{100 * cell['draft_acceptance_rate']:.3g} % of the {cell['draft_tokens']:g} tokens drafted in a repeat were "
        f"accepted, and a sequence got {cell['tokens_per_draft_mean']:.3g} tokens in a step with drafts."
    )


def _pairs(report: Report, knob: str, known_by: str, found: Callable[[Mapping[str, Any]], str]) -> Findings:
    """Pairs of cells that differ only in the knob, the largest gain first, with medians over the former's repeats."""
    effects = report.tables.need("effects", "comparison", "knob", "ratio", "held")
    pairs = effects[(effects["comparison"] == "pair") & (effects["knob"] == knob)]
    if pairs.empty:
        raise MissingError(f"no two measured cells differ in {knob} alone")
    report.tables.need("cells", known_by)
    of_cell = report.tables.cells.groupby("cell_id").median(numeric_only=True)
    told = evenly(pairs.assign(held=without_shared(pairs["held"])), ["knob"], "ratio", MOST_SENTENCES)
    findings = []
    for row in records(told.sort_values("ratio", ascending=False, kind="stable")):
        cell = of_cell.loc[row["cell_id"]]
        sentence = f"{_place(row)}: {row['explanation']}"
        sentence += f" {found(cell)}" if pd.notna(cell.get(known_by)) else ""
        verdict = f"{row['ratio']:.3g}x" if row["verdict"] == "changes" else str(row["verdict"])
        findings.append(Finding(verdict, sentence, TONES.get(str(row["verdict"]), "neutral")))
    some = f"{len(told)} of {len(pairs)} comparisons, evenly from the largest ratio to the smallest; the table effects "
    return Findings(findings, some + "holds all." if len(told) < len(pairs) else "")


def devices(report: Report) -> Iterator[Block]:
    """For each pair of devices what explains the speed-up, and one case in detail."""
    ratios = report.tables.need("ratios")
    ratios = ratios[ratios["metric"] == "output_tokens_per_s"]
    findings = []
    for (a, b), rows in ratios.groupby(["gpu_a", "gpu_b"], sort=False):
        explained = rows["explanation"].fillna("no known ratio").value_counts()
        verdict = str(explained.index[0]) if len(explained) == 1 else "mixed"
        counted = ", ".join(f"by {name} in {count}" for name, count in explained.items()).replace("_", " ")
        # Memory bandwidth should explain decoding, so the case with the largest share of decoding is shown.
        example = records(rows.sort_values("decode_share_a", ascending=False).head(1))[0]
        findings.append(
            Finding(
                verdict.replace("_", " "),
                f"{a} over {b}, of {len(rows)} settings explained {counted}. {example['verdict_text']} "
                f"({example['engine']}, {example['model']}, {example['workload']}, {example['knobs']})",
            )
        )
    yield _some(findings, "ratios")


def cannot_show(report: Report) -> Iterator[Block]:
    """Pairs of devices whose processor hides that decoding follows memory bandwidth, and why."""
    ratios = report.tables.get("ratios")
    if ratios is not None and "cannot_show" in ratios and len(reasons := ratios["cannot_show"].dropna().unique()):
        yield Findings([Finding("cannot show", str(reason)) for reason in reasons])


def engines(report: Report) -> Iterator[Block]:
    """The fastest vLLM cell compared with the fastest HuggingFace cell, for each device, model and workload."""
    pairs = report.tables.need("engines")
    pairs = pairs[pairs["comparable"].eq(True)]
    if pairs.empty:
        raise MissingError("no cells of the two engines did equal work")
    fastest = pairs.sort_values(["vllm_output_tokens_per_s", "hf_output_tokens_per_s"], ascending=False)
    rows = records(fastest.drop_duplicates(["gpu", "model", "workload"]))
    yield _some(
        [Finding(f"{row['improvement_ratio']:.3g}x", f"{row['explanation']} ({_place(row)})") for row in rows],
        "engines",
    )


def decomposition(report: Report) -> Iterator[Block]:
    """Steps from single HuggingFace requests to vLLM, per device, model and workload at the highest max-num-seqs."""
    factors = report.tables.need("engine_decomposition")
    most = factors.groupby(["gpu", "model", "workload"])["vllm_max_num_seqs"].transform("max")
    rows = factors[factors["vllm_max_num_seqs"] == most]
    rows = rows.drop_duplicates(["gpu", "model", "workload", "factor"])
    yield _some(
        [
            Finding(str(row["factor"]).replace("_", " "), f"{row['explanation']} ({_place(row)})")
            for row in records(rows)
        ],
        "engine_decomposition",
        4 * MOST_SENTENCES,
    )


def models(report: Report) -> Iterator[Block]:
    """The effect of another model, or of the same model with weights of another type, at equal settings."""
    yield _pairs(report, MODEL, "kv_cache_tokens", _room)


def _room(cell: Mapping[str, Any]) -> str:
    return f"Its KV cache holds {cell['kv_cache_tokens']:,.0f} tokens."


def capacity_predicted(report: Report) -> Iterator[Block]:
    """The errors of the KV cache predictions, compared with what engines measured."""
    names = ["observed_kv_cache_tokens", "observed_max_concurrency"]
    rows = report.tables.need("capacity", "cell_id", "source", "kv_cache_tokens_error_pct", *names)
    measured = rows[(rows["source"] == "measured") & rows["observed_kv_cache_tokens"].notna()]
    error_pct = measured["kv_cache_tokens_error_pct"].dropna().abs()
    if error_pct.empty:
        raise MissingError("of no cell were the tokens of its KV cache both predicted and measured")
    within = int((error_pct <= WITHIN_PCT).sum())
    # The number of full-length requests is not known for every cell, so the tokens shown with it are of the same cells.
    whole = measured.dropna(subset=names)
    held = [_span(whole[name]) for name in names]
    sentence = (
        f"KV caches hold {held[0]} tokens, which is {held[1]} requests of full length, measured. " if held[0] else ""
    )
    sentence += (
        f"Of {len(error_pct)} cells whose KV-cache tokens were predicted and measured, {within} were predicted within "
        f"{WITHIN_PCT:g} %; the largest error is {error_pct.max():.3g} %."
    )
    if given := int(measured.loc[error_pct.index, "cell_id"].isin(_size_given(report.tables)).sum()):
        sentence += (
            f" In {given} of them the study gives the cache's size, so that their prediction is mere arithmetic."
        )
    if unpredicted := len(measured) - len(error_pct):
        sentence += f" Of {unpredicted} more that were measured there is no prediction."
    all_within = within == len(error_pct)
    yield Findings([Finding("predicted" if all_within else "missed", sentence, "good" if all_within else "neutral")])


def _span(values: pd.Series) -> str:
    """The range from the minimum to the maximum, one number if they are equal; empty if there are no values."""
    return " to ".join(dict.fromkeys([shown(values.min()), shown(values.max())])) if len(values) else ""


def _size_given(tables: Tables) -> set[str]:
    """Cells for which the study sets the size of the KV cache."""
    amounts = [f"knob_{name}" for name, knob in every_knob().items() if knob.reserves == "amount"]
    knobs = [name for name in amounts if name in tables.cells]
    return set(tables.cells.loc[tables.cells[knobs].notna().any(axis=1), "cell_id"])


def capacity(report: Report) -> Iterator[Block]:
    """Why predictions of the KV cache were wrong, for cells where they were."""
    rows = report.tables.need("capacity", "cell_id", "source", "kv_cache_tokens_error_pct", "explanation")
    explained = rows[rows["explanation"].notna()]
    if explained.empty:
        return
    # Cells that differ only in knobs without effect on the cache have the same explanation.
    yield _some(
        [
            Finding(
                "published" if row["source"] == "published" else "missed", f"{row['cell_id']}: {row['explanation']}"
            )
            for row in records(explained.drop_duplicates("explanation"))
        ],
        "capacity",
    )


def claims_counted(report: Report) -> Iterator[Block]:
    """The number of the study's published claims with each verdict."""
    if not report.study.claims:
        return
    rows = report.tables.need("claims", "verdict")
    counted = ", ".join(f"{count} {verdict}" for verdict, count in rows["verdict"].value_counts().items())
    yield Findings([Finding("claims", f"Of {len(rows)} published claims: {counted}. Each is under Claims re-tested.")])


def claims(report: Report) -> Iterator[Block]:
    """The published claims that the study names, with verdicts; below each its evidence, labelled by source."""
    rows = report.tables.need("claims", "claim", "published_by", "verdict", "evidence", "seen_here", "would_test")
    decided_first = rows.sort_values("verdict", key=lambda verdicts: verdicts.str.startswith("not "), kind="stable")
    for row in records(decided_first):
        paragraphs = {
            f"Published by {row['published_by']}": row["published_value"],
            "Evidence": row["evidence"],
            "Seen here, decides nothing": row["seen_here"],
            "Would test it": row["would_test"],
        }
        told = [Text(f"{heading}: {text}") for heading, text in paragraphs.items() if text]
        yield Fold(f"{row['verdict']}: {row['claim']}", told)


def limits(report: Report) -> Iterator[Block]:
    """Cells above a ceiling and cells above only a doubtful ceiling, or a sentence that there are none."""
    rows = report.tables.need("limits", "cell_id", "exceeds", "factor", "tolerance", "ceiling_broken")
    known = rows[rows["factor"].notna()].sort_values("factor", ascending=False)
    if known.empty:
        raise MissingError("no ceiling is known of any cell")
    above = known[known["exceeds"].eq(True)].drop_duplicates("cell_id")
    doubtful = known.loc[~known["exceeds"].eq(True) & (known["factor"] > 1), "cell_id"].nunique()
    findings = [
        Finding(
            "impossible",
            f"{row['cell_id']}: {row['factor']:.3g} times its ceiling on {row['ceiling_broken']}. "
            "It is marked invalid and kept out of all comparisons.",
            "bad",
        )
        for row in records(above)
    ]
    if doubtful:
        sentence = (
            f"{doubtful} of {known['cell_id'].nunique()} cells lie above a ceiling made from measured device rates, by "
            "no more than such rates may be off. Rates that were measured while others loaded the host may be off by "
            "any factor."
        )
        findings.append(Finding("not decided", sentence))
    if not findings:
        sentence = f"None of {known['cell_id'].nunique()} cells lies above what its device allows at most."
        findings.append(Finding("possible", sentence, "good"))
    yield _some(findings, "limits")


def recommendations(report: Report) -> Iterator[Block]:
    """Configurations to serve with, as command lines."""
    table = report.tables.need("recommendations")
    rows = table[table["role"].isin(ROLES)]
    if rows.empty:
        raise MissingError("no vLLM cell was measured that could be recommended")
    for row in records(rows.head(4 * MOST_SENTENCES)):
        yield Command(f"{ROLES[row['role']]}: {_place(row)}", row["command"] or "", row["explanation"])


def _some(findings: list[Finding], table: str, most: int = MOST_SENTENCES) -> Findings:
    note = f"{most} of {len(findings)}; the table {table} holds all." if len(findings) > most else ""
    return Findings(findings[:most], note)


def _place(row: Mapping[str, Any]) -> str:
    return ", ".join(filter(None, (row["gpu"], row["model"], row["workload"], row.get("held"))))
