"""Claims on KV memory: with evidence for them, against them, and without evidence."""

import pytest

from tests.unit.analyse.claim_evidence import LLAMA, evidence, findings, judged, republished
from tests.unit.analyse.synthetic_cells import cell
from workflow_scripts.analyse.evidence import COMPUTED, CONTRADICTED, MEASURED, NOT_TESTABLE, PUBLISHED, SUPPORTED

SLOTS = "empty-slots-per-sequence"
WASTE = "contiguous-allocation-waste"
EXAMPLE = "contiguous-allocation-example"
USED = "memory-used-by-paging"
GAINED = "concurrency-gained-by-paging"
SHORT = "waste-of-512-slots"
LINE = "blocks-linear-in-utilization"
L4 = "capacity-of-an-l4"
GIB = 2**30
CELL = f"h200/vllm/{LLAMA}/chat/bs16"


def measured(gpu="h200", **layouts):
    """Evidence of a cell whose requests were laid out: {layout: waste in per cent}, or further columns."""
    rows = []
    for name, columns in layouts.items():
        columns = columns if isinstance(columns, dict) else {"waste_pct": columns}
        size = 16 if name == "block_size_whatif" else None
        rows.append(
            {"cell_id": CELL.replace("h200", gpu), "layout": name, "block_size": size, "start": 1, "repeat": 0}
            | columns
        )
    return evidence(cells=[cell({"block_size": 16}, (1.0, 1.0), gpu=gpu, max_model_len_effective=4096)], waste=rows)


# --- waste -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("numbers", "verdict"),
    [
        ({}, SUPPORTED),
        ({"empty_slots_per_sequence": (None, 14)}, CONTRADICTED),
        ({"empty_slots_per_sequence": (None, 16)}, CONTRADICTED),
        ({"block_size": 32}, CONTRADICTED),
        ({"block_size": 32, "empty_slots_per_sequence": (None, 31)}, SUPPORTED),
    ],
)
def test_the_last_block_has_at_most_all_but_one_slot_empty(numbers, verdict):
    assert judged(SLOTS, evidence(), **numbers) == verdict


def test_measured_empty_slots_contradict_only_above_the_most_there_can_be():
    below = measured(block_size_whatif={"wasted_slots_per_sequence": 15.0})
    arithmetic, found = findings(SLOTS, below)
    assert arithmetic.text == "Only a sequence's last block has empty slots: at most 15 of 16, if it holds one token."
    assert (arithmetic.scope, arithmetic.label) == ("blocks of 16 tokens", COMPUTED)
    assert found.text.endswith("With the measured requests, 15 slots of a sequence would be empty on average.")
    assert (found.says, found.label) == (None, COMPUTED)
    assert found.scope == f"h200, {LLAMA}, chat, max_model_len 4096"
    assert found.ids == ("waste", CELL)
    assert judged(SLOTS, below) == SUPPORTED
    assert judged(SLOTS, measured(block_size_whatif={"wasted_slots_per_sequence": 15.1})) == CONTRADICTED
    assert judged(SLOTS, measured(paged={"wasted_slots_per_sequence": 15.1, "block_size": 16})) == SUPPORTED
    other = measured(block_size_whatif={"wasted_slots_per_sequence": 30.0, "block_size": 32})
    assert judged(SLOTS, other) == SUPPORTED


@pytest.mark.parametrize(
    ("waste_pct", "gpu", "verdict"),
    [
        (60, "h200", SUPPORTED),
        (80, "h200", SUPPORTED),
        (59.9, "h200", CONTRADICTED),
        (80.1, "h200", CONTRADICTED),
        (70, "cpu-all", NOT_TESTABLE),
        (90, "cpu-all", NOT_TESTABLE),
    ],
)
def test_waste_of_requests_measured_on_a_gpu_must_lie_in_the_range(waste_pct, gpu, verdict):
    assert judged(WASTE, measured(gpu, contiguous_max_model_len=waste_pct)) == verdict


def test_without_measured_requests_the_lengths_are_said_to_decide():
    (found,) = findings(WASTE, evidence())
    assert found.text == (
        "Reserving R slots for requests of n tokens wastes 1 - n/R: 60 to 80 % if requests hold 20 to 40 % of"
        " the reserved slots, and another share for other lengths."
    )
    assert judged(WASTE, evidence()) == NOT_TESTABLE
    assert judged(WASTE, measured(padded_batch=70, contiguous_request_length=70)) == NOT_TESTABLE


def test_waste_is_the_mean_over_the_cells_of_a_workload():
    other = cell({"block_size": 32}, (1.0,), max_model_len_effective=4096)
    shorter = cell({"block_size": 64}, (1.0,), max_model_len_effective=512)
    of = evidence(
        cells=[cell({"block_size": 16}, (1.0,), max_model_len_effective=4096), other, shorter],
        waste=[
            {"cell_id": f"h200/vllm/{LLAMA}/chat/bs{size}", "layout": "contiguous_max_model_len", "waste_pct": pct}
            for size, pct in ((16, 70.0), (32, 90.0), (64, 40.0))
        ],
    )
    _, long, short = findings(WASTE, of)
    assert "each measured request, 80.0 % would be wasted" in long.text
    assert [i.split("/")[-1] for i in long.ids] == ["waste", "bs16", "bs32"]
    assert "40.0 %" in short.text
    assert short.scope.endswith("max_model_len 512")


@pytest.mark.parametrize(
    ("numbers", "verdict"),
    [
        ({}, SUPPORTED),
        ({"waste": 62.54}, SUPPORTED),
        ({"waste": 62.4}, CONTRADICTED),
        ({"waste": 62.6}, CONTRADICTED),
        ({"tokens_used": [1024, 512, 3073]}, SUPPORTED),
        ({"tokens_used": [1024, 512]}, CONTRADICTED),
        ({"tokens_reserved_per_request": 2048}, CONTRADICTED),
    ],
)
def test_an_example_is_arithmetic(numbers, verdict):
    assert judged(EXAMPLE, evidence(), **numbers) == verdict


def test_an_example_is_told_with_its_sums():
    (found,) = findings(EXAMPLE, evidence())
    assert found.text == "4,608 of 12,288 slots are used, so 62.5 % are wasted."


@pytest.mark.parametrize(
    ("waste_pct", "gpu", "verdict", "waste_of_512"),
    [
        (98.75, "h200", SUPPORTED, "90.0"),
        (98.2, "h200", SUPPORTED, "85.6"),
        (98.0, "h200", NOT_TESTABLE, "84.0"),
        (98.75, "cpu-all", NOT_TESTABLE, "90.0"),
    ],
)
def test_the_waste_of_512_slots_follows_from_what_requests_held_of_4096(waste_pct, gpu, verdict, waste_of_512):
    of = measured(gpu, contiguous_max_model_len=waste_pct)
    arithmetic, found = findings(SHORT, of)
    assert arithmetic.text.startswith("By arithmetic a request wastes 90 % of 512 slots if it holds 51 tokens;")
    assert f"With 512 slots for each measured request, {waste_of_512} % would be wasted." in found.text
    assert judged(SHORT, of) == verdict


def test_requests_that_do_not_fit_into_512_slots_say_nothing_of_them():
    assert len(findings(SHORT, measured(contiguous_max_model_len=87.5))) == 1


@pytest.mark.parametrize(
    ("paged", "contiguous", "gpu", "verdict"),
    [
        (5, 80, "h200", SUPPORTED),
        (0, 75, "h200", SUPPORTED),
        (10, 85, "h200", SUPPORTED),
        (10.1, 80, "h200", CONTRADICTED),
        (5, 74.9, "h200", CONTRADICTED),
        (5, 85.1, "h200", CONTRADICTED),
        (5, 80, "cpu-all", NOT_TESTABLE),
    ],
)
def test_both_shares_must_be_as_published_to_5_points(paged, contiguous, gpu, verdict):
    of = measured(gpu, block_size_whatif=paged, contiguous_max_model_len=contiguous)
    assert judged(USED, of) == verdict


def test_shares_in_use_are_told_and_what_they_take():
    about, found = findings(USED, measured(block_size_whatif=4.0, contiguous_max_model_len=79.0))
    # 7.5 empty slots a sequence are 5 % of 150.
    assert about.text == (
        "Blocks of 16 are 95 % full if requests hold 143 tokens on average, and memory that is reserved beforehand is"
        " 20 % full if requests use that share of it, so both depend on the lengths."
    )
    assert (about.label, about.says) == (COMPUTED, None)
    assert found.text.endswith(
        "With the measured requests, 96.0 % of the slots in blocks of 16 would hold a token, and 21.0 % of"
        " max_model_len slots for each."
    )


def test_one_layout_alone_says_nothing_of_two():
    assert len(findings(USED, measured(block_size_whatif=5.0))) == 1
    assert len(findings(USED, measured(contiguous_max_model_len=80.0))) == 1


@pytest.mark.parametrize(
    ("contiguous", "gpu", "verdict"),
    [
        (400, "h200", SUPPORTED),
        (500, "h200", SUPPORTED),
        (399, "h200", CONTRADICTED),
        (501, "h200", CONTRADICTED),
        (450, "cpu-all", NOT_TESTABLE),
    ],
)
def test_as_many_times_the_requests_fit_as_one_layout_takes_of_the_other(contiguous, gpu, verdict):
    of = measured(
        gpu,
        block_size_whatif={"slots_held_mean": 100.0},
        contiguous_max_model_len={"slots_held_mean": float(contiguous)},
    )
    assert judged(GAINED, of) == verdict


def test_the_gain_is_told_beside_what_the_same_text_says_elsewhere(tmp_path):
    of = measured(block_size_whatif={"slots_held_mean": 100.0}, contiguous_max_model_len={"slots_held_mean": 450.0})
    own, found = findings(GAINED, of)
    assert (own.label, own.says) == (PUBLISHED, None)
    assert own.text == "The same text gives 95 % and 20 % of memory in use, which is a ratio of 4.75."
    assert "would take 4.5 times as many slots with max_model_len for each as in blocks of 16." in found.text
    other = republished(tmp_path, claims={USED: {"kv_memory_used_paged": 90}})
    assert "90 % and 20 % of memory in use, which is a ratio of 4.5" in findings(GAINED, evidence(other))[0].text


def in_the_same_pool(users, gpu="h200", **waste):
    """Cells with blocks of 16 and with 4,096 slots per request, in 32,768 tokens; `users` of each while others wait."""
    knobs = {"blocks": (16, 2049), "whole": (4096, 9)}
    cells = [
        cell(
            {"block_size": size, "num_gpu_blocks_override": number},
            (1.0, 1.0),
            gpu=gpu,
            block_size_effective=size,
            num_gpu_blocks=number,
            max_model_len_effective=4096,
            running_while_others_wait=users[name],
        )
        for name, (size, number) in knobs.items()
    ]
    rows = [
        {
            "cell_id": f"{gpu}/vllm/{LLAMA}/chat/bs{knobs[name][0]}-pool{knobs[name][1]}",
            "layout": "paged",
            "start": 1,
            "repeat": 0,
            "waste_pct": float(pct),
        }
        for name, pct in waste.items()
    ]
    return evidence(cells=cells, waste=rows)


@pytest.mark.parametrize(
    ("users", "gpu", "verdict"),
    [
        (32, "h200", SUPPORTED),
        (40, "h200", SUPPORTED),
        (31, "h200", CONTRADICTED),
        (41, "h200", CONTRADICTED),
        (36, "cpu-all", NOT_TESTABLE),
    ],
)
def test_users_are_counted_where_both_ways_were_measured_in_the_same_memory(users, gpu, verdict):
    of = in_the_same_pool({"blocks": users, "whole": 8}, gpu)
    assert judged(GAINED, of) == verdict
    found = findings(GAINED, of)[-1]
    assert found.label == MEASURED
    assert found.text.endswith(
        f"In a KV cache of 32,768 tokens, {users} requests ran at once in blocks of 16 while others waited, and 8 where"
        f" each reserved 4096 tokens: {users / 8:.3g} times."
    )
    assert [i.split("/")[-1] for i in found.ids] == ["bs16-pool2049", "bs4096-pool9"]


def test_pools_in_which_nobody_waits_say_nothing_about_users():
    assert len(findings(GAINED, in_the_same_pool({"blocks": None, "whole": 8}))) == 1
    assert len(findings(GAINED, in_the_same_pool({"blocks": 32, "whole": None}))) == 1


@pytest.mark.parametrize(
    ("blocks", "whole", "verdict"), [(5, 80, SUPPORTED), (20, 80, CONTRADICTED), (5, 60, CONTRADICTED)]
)
def test_the_use_of_memory_is_measured_in_both_ways(blocks, whole, verdict):
    of = in_the_same_pool({"blocks": 36, "whole": 8}, blocks=blocks, whole=whole)
    assert judged(USED, of) == verdict
    assert (
        f"tokens filled {100 - blocks:.1f} % of the slots that requests held in blocks of 16, and {100 - whole:.1f} %"
        " where each reserved 4096." in findings(USED, of)[-1].text
    )
    assert len(findings(USED, in_the_same_pool({"blocks": 36, "whole": 8}))) == 1


# --- blocks ----------------------------------------------------------------------------------------------------------


def blocks(**columns):
    """A row of `capacity` for the published blocks."""
    row = {
        "source": "published",
        "cell_id": "published/kv_blocks_l4_opt125m/1",
        "gpu": "L4",
        "model": "facebook/opt-125m",
        "workload": None,
        "gpu_memory_utilization": 0.5,
        "implied_overhead_bytes": 0.97 * GIB,
        "implied_memory_bytes": 11.6 * GIB,
        "predicted_overhead_bytes": 0.88 * GIB,
        "kv_cache_tokens_error_pct": 110.0,
        "explanation": "The device is another one.",
    }
    return row | columns


@pytest.mark.parametrize(
    ("overhead_gib", "verdict"),
    [
        (0.97, SUPPORTED),
        (1.09, SUPPORTED),
        (1.11, CONTRADICTED),
        (0.67, SUPPORTED),
        (0.65, CONTRADICTED),
        (-0.5, CONTRADICTED),
    ],
)
def test_a_line_must_leave_room_for_about_the_predicted_overhead(overhead_gib, verdict):
    of = evidence(capacity=[blocks(implied_overhead_bytes=overhead_gib * GIB)])
    assert judged(LINE, of) == verdict


def test_two_points_alone_show_no_line():
    (found,) = findings(LINE, evidence())
    assert (found.label, found.says) == (PUBLISHED, None)
    assert found.text == (
        "17,234 over 8,788 blocks are 1.961 times, the utilizations 1.8 times. Two points always lie on a line, so they"
        " alone prove nothing."
    )
    assert judged(LINE, evidence(capacity=[blocks(implied_overhead_bytes=None)])) == NOT_TESTABLE


def test_the_published_line_is_told_once_with_its_overhead():
    rows = [blocks(), blocks(cell_id="published/kv_blocks_l4_opt125m/2", gpu_memory_utilization=0.9)]
    _, found = findings(LINE, evidence(capacity=rows))
    assert found.text.endswith("The points imply 0.97 GiB for these; predicted are 0.88 GiB.")
    assert (found.label, found.scope) == (COMPUTED, "L4, facebook/opt-125m, as published")


def line(*numbers, gpu="l4", model="opt-125m"):
    """Cells at several utilizations on a device of 20 GiB with 1 GiB of overhead, in blocks of 1 MiB."""
    return [
        blocks(
            source="measured",
            study="try",
            gpu=gpu,
            model=model,
            workload="chat",
            cell_id=f"cell-{utilization}",
            gpu_memory_utilization=utilization,
            implied_memory_bytes=20 * GIB,
            implied_overhead_bytes=GIB,
            bytes_per_block=2**20,
            observed_num_blocks=(20 * utilization - 1) * 1024 * factor,
        )
        for utilization, factor in numbers
    ]


@pytest.mark.parametrize(
    ("factor", "verdict"),
    [(1.0, SUPPORTED), (1.0099, SUPPORTED), (0.9901, SUPPORTED), (1.0101, CONTRADICTED), (0.9899, CONTRADICTED)],
)
def test_measured_blocks_must_lie_within_1_percent_of_their_line(factor, verdict):
    assert judged(LINE, evidence(capacity=line((0.5, 1), (0.7, factor), (0.9, 1)))) == verdict


def test_two_measured_points_or_another_device_show_nothing():
    assert judged(LINE, evidence(capacity=line((0.5, 1), (0.9, 1)))) == NOT_TESTABLE
    three = ((0.5, 1), (0.7, 2), (0.9, 1))
    for place in ({"gpu": "h200"}, {"model": "smollm-135m"}):
        of = evidence(capacity=line(*three, **place))
        assert judged(LINE, of) == NOT_TESTABLE
        assert (findings(LINE, of)[-1].bears, findings(LINE, of)[-1].says) == (False, None)


def test_a_measured_line_is_told_with_how_far_blocks_lie_from_it():
    found = findings(LINE, evidence(capacity=line((0.5, 1), (0.7, 1.005), (0.9, 1), (0.9, 1))))[-1]
    assert found.text == "l4, opt-125m, chat: Blocks at 3 utilizations deviate from a straight line by at most 0.5 %."
    assert found.ids == ("cell-0.5", "cell-0.7", "cell-0.9", "cell-0.9")


@pytest.mark.parametrize(
    ("error_pct", "verdict"),
    [(110.0, CONTRADICTED), (5.1, CONTRADICTED), (-5.1, CONTRADICTED), (4.9, SUPPORTED), (None, NOT_TESTABLE)],
)
def test_a_published_capacity_must_be_near_the_predicted_one(error_pct, verdict):
    assert judged(L4, evidence(capacity=[blocks(kv_cache_tokens_error_pct=error_pct)])) == verdict


def test_a_capacity_that_differs_has_the_explanation_of_the_table():
    rounding, found = findings(L4, evidence(capacity=[blocks(), blocks(gpu_memory_utilization=0.9)]))
    assert found.text == "The device is another one."
    assert found.scope == "a whole L4, facebook/opt-125m"
    assert found.ids == ("published/kv_blocks_l4_opt125m/1",)
    assert rounding.text == "140,608 over 2,048 tokens are 68.66 requests, not 68.65."
    assert (rounding.label, rounding.says) == (COMPUTED, None)
    (near,) = findings(L4, evidence(capacity=[blocks(kv_cache_tokens_error_pct=1.0)]), max_concurrency=68.66)
    assert near.text == "The prediction agrees with the published number within 5 %."


@pytest.mark.parametrize(
    ("tokens", "columns", "verdict"),
    [
        (140608, {}, SUPPORTED),
        (147600, {}, SUPPORTED),
        (147700, {}, CONTRADICTED),
        (295104, {}, CONTRADICTED),
        (295104, {"gpu_memory_utilization": 0.9}, NOT_TESTABLE),
        (295104, {"gpu": "h200"}, NOT_TESTABLE),
        (295104, {"model": "smollm-135m"}, NOT_TESTABLE),
    ],
)
def test_what_an_l4_was_measured_to_hold_decides(tokens, columns, verdict):
    row = blocks(source="measured", study="try", gpu="l4", model="opt-125m", observed_kv_cache_tokens=tokens)
    assert judged(L4, evidence(capacity=[row | {"kv_cache_tokens_error_pct": 0.1} | columns])) == verdict


def test_a_measured_capacity_is_told_and_labelled():
    row = blocks(source="measured", study="try", gpu="l4", model="opt-125m", observed_kv_cache_tokens=295104)
    found = findings(L4, evidence(capacity=[row]))[-1]
    assert (found.text, found.label) == ("l4, opt-125m: It holds 295,104 tokens at utilization 0.5.", MEASURED)
