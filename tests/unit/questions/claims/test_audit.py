import json
import math
from dataclasses import asdict, replace

import pandas as pd
import pytest

from workflow_scripts.catalog.gpus_and_models import CONFIG, get_model, load_gpus
from workflow_scripts.physics.model_facts import read_model_facts
from workflow_scripts.physics.rate_ceiling import MeanLengths, ceiling
from workflow_scripts.questions.claims.audit import judge, main
from workflow_scripts.questions.claims.rate_table import find_rates

PUBLISHED = CONFIG / "published"
GPUS = load_gpus()
LLAMA = read_model_facts(get_model("llama-3.1-8b-instruct").config)
LLAMA_70B = read_model_facts(get_model("llama-3-70b").config)
EVEN = MeanLengths(200, 200)


def audit(rows, workload=EVEN, facts=LLAMA):
    rates = find_rates(list(rows[0]), rows)
    return pd.DataFrame([asdict(judge(rate, facts, workload)) for rate in rates])


def row(gpu="H200", max_num_seqs=1, **throughput):
    return {"gpu": gpu, "max_num_seqs": max_num_seqs, **(throughput or {"throughput_tok_s": 100})}


def test_a_ceiling_of_each_kind_by_hand():
    # Two sequences of 100 + 5 tokens on an H200: each has half of the weights of 5 steps, and reads the KV of
    # 100 + 101 + 102 + 103 tokens.
    by_memory = ceiling(LLAMA, GPUS["h200"], 2, MeanLengths(100, 5))
    time_s = (5 * LLAMA.decode_weight_bytes / 2 + 406 * 131072) / 4.8e12
    assert by_memory.total_tokens_per_s == pytest.approx(105 / time_s)
    assert by_memory.output_tokens_per_s == pytest.approx(5 / time_s)
    assert by_memory.because == "2 live sequences on h200: a step reads 15.0 GB of weights at 4.8 TB/s"
    # 48 GB less 16.06 GB of weights, in requests that hold 8000 + 99/2 tokens on average.
    by_size = ceiling(LLAMA, GPUS["l40s"], 1000, MeanLengths(8000, 100), 0.9)
    memory = max(GPUS["l40s"].memory_bytes, GPUS["l40s"].usable_memory_bytes or 0) * 0.9
    sequences = (memory - 2 * 8030261248) / (131072 * 8049.5)
    time_s = (100 * LLAMA.decode_weight_bytes / sequences + 99 * (8000 + 49) * 131072) / 864e9
    assert by_size.total_tokens_per_s == pytest.approx(8100 / max(time_s, LLAMA.request_flops(8000, 100) / 362.05e12))
    by_arithmetic = ceiling(LLAMA, GPUS["l40s"], 256, MeanLengths(8000, 1))
    assert by_arithmetic.total_tokens_per_s == pytest.approx(8001 / (LLAMA.request_flops(8000, 1) / 362.05e12))
    # A quantized model may run at the highest rate of the card.
    quantized = ceiling(replace(LLAMA, quantization="awq"), GPUS["h200"], 256, MeanLengths(8000, 1))
    assert quantized.total_tokens_per_s == pytest.approx(8001 / (LLAMA.request_flops(8000, 1) / 1979e12))
    # What is left beside the weights holds 1 request, or a little less than 1.
    tokens = (GPUS["l40s"].memory_bytes - LLAMA.weight_bytes) / 131072
    card = GPUS["l40s"].model_copy(update={"usable_memory_bytes": None})
    assert ceiling(LLAMA, card, 8, MeanLengths(math.floor(tokens), 1)).limit != "memory size"
    refused = ceiling(LLAMA, card, 8, MeanLengths(math.ceil(tokens) + 1, 1))
    assert (refused.limit, refused.total_tokens_per_s, refused.output_tokens_per_s) == ("memory size", 0, 0)


def test_a_rate_at_its_ceiling_is_possible_and_prompt_tokens_count_unless_the_column_says_output():
    highest = ceiling(LLAMA, GPUS["h200"], 1, EVEN).total_tokens_per_s
    assert highest == pytest.approx(2 * 319.8, rel=0.01)
    assert audit([row(throughput_tok_s=highest)]).loc[0, "verdict"] == "possible"
    above = audit([row(throughput_tok_s=highest * 1.0001)]).loc[0]
    assert (above["verdict"], above["ceiling_gpu"], above["limit"]) == ("impossible", "h200", "memory bandwidth")
    assert (above["predicted_ceiling_tokens_per_s"], above["times_ceiling"]) == (highest, pytest.approx(1.0001))
    of_output = audit([row(output_tokens_per_s=highest)]).loc[0]
    assert (of_output["verdict"], of_output["times_ceiling"]) == ("impossible", pytest.approx(2))
    assert of_output["predicted_ceiling_tokens_per_s"] == pytest.approx(highest / 2)
    # A model that does not fit has no throughput.
    audited = audit([row("H100", 16), row("B200", 16)], facts=LLAMA_70B)
    assert list(audited["verdict"]) == ["impossible", "possible"]
    assert audited.loc[0, "limit"] == "memory size"
    assert audit([row("H100", 16)], workload=None, facts=LLAMA_70B).loc[0, "verdict"] == "impossible"
    # An ambiguous card is the one with the highest ceiling.
    audited = audit([row("A100 PCIe"), row("H100"), row("h100-pcie")])
    assert list(audited["ceiling_gpu"]) == ["a100-pcie-80gb", "h100-nvl", "h100-pcie"]


def test_where_rows_do_not_say_how_many_sequences_as_many_as_fit_are_assumed():
    rows = pd.read_csv(PUBLISHED / "paged_attention_lab_block_size.csv").to_dict("records")
    for rows_of in (rows, [row(max_num_seqs=None, throughput_tok_s=5000)]):
        audited = audit(rows_of)
        assert set(audited["verdict"]) == {"possible"}
        assert audited["reason"].str.contains("as many as the KV cache holds assumed").all()


@pytest.mark.parametrize(
    ("rate", "lengths", "verdict", "needs"),
    [
        # One sequence of an H200 gives 4.8e12 / 15.01e9 = 319.8 output tokens/s, of any lengths.
        ({"throughput_tok_s": 300}, None, "possible", None),
        ({"throughput_tok_s": 3198}, None, "conditional", "90 % of the tokens are prompt tokens"),
        ({"output_tokens_per_s": 3198}, None, "impossible", None),
        ({"throughput_tok_s": 3198}, EVEN, "impossible", None),
        # Arithmetic allows 989.5e12 / 16.06e9 = 61,600 tokens/s at most, if no prompt is cached.
        ({"throughput_tok_s": 140_000}, None, "conditional", "of the prompt tokens come from a prefix cache"),
        ({"throughput_tok_s": 140_000}, MeanLengths(8000, 1), "conditional", "of the prompt tokens come from a prefix"),
    ],
)
def test_a_rate_is_impossible_only_if_nothing_that_is_open_allows_it(rate, lengths, verdict, needs):
    audited = audit([row(**rate)], lengths).loc[0]
    assert audited["verdict"] == verdict
    assert ("possible only if at least" in audited["reason"]) == (needs is not None)
    assert needs is None or needs in audited["reason"]


@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        (row("H300"), "unknown GPU 'H300'"),
        (row("cpu-1core"), "no data sheet gives the rates of cpu-1core"),
        (row(throughput_tok_s="OOM"), "no number in this field"),
        (row(throughput_tok_s=0), "no number in this field"),
        (row(max_num_seqs="many"), "sequences is 'many'"),
        ({"gpu": "H100", "tok/s/GPU": 1}, "a rate per GPU, and nothing states the number of GPUs"),
    ],
)
def test_what_cannot_be_judged_is_unknown_with_the_reason(rows, reason):
    audited = audit([rows])
    assert audited.loc[0, "verdict"] == "unknown"
    assert reason in audited.loc[0, "reason"]
    assert math.isnan(audited.loc[0, "times_ceiling"])


# --- the command -----------------------------------------------------------------------------------------------------

MAX_NUM_SEQS = str(PUBLISHED / "paged_attention_lab_max_num_seqs.csv")
OPTIONS = ["--model", "llama-3.1-8b-instruct", "--tokens-per-request", "200,200"]


def test_the_command_prints_json(capsys):
    assert main([MAX_NUM_SEQS, *OPTIONS, "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert len(record.pop("rows")) == 20
    assert record == {
        **{"table": MAX_NUM_SEQS, "model": "llama-3.1-8b-instruct", "quantization": None},
        **{"prompt_tokens": 200, "output_tokens": 200},
        "verdicts": {"possible": 8, "conditional": 0, "impossible": 12, "unknown": 0},
    }


def test_every_option_reaches_the_ceilings(tmp_path, capsys):
    table = tmp_path / "table.csv"
    table.write_text("gpu,tok/s,output tok/s\nL40S,5,5\n")
    workload = MeanLengths(8000, 100)
    quantized = replace(LLAMA, quantization="awq")
    for more, facts, arguments in (
        ([], LLAMA, (math.inf, workload)),
        (["--kv-cache-dtype", "fp8"], LLAMA, (math.inf, workload, 1.0, "fp8")),
        (["--quantization", "awq"], quantized, (math.inf, workload)),
        (["--tokens-per-request", "1,100"], LLAMA, (math.inf, MeanLengths(1, 100))),
    ):
        for column, rate in (("tok/s", "total_tokens_per_s"), ("output tok/s", "output_tokens_per_s")):
            words = [*OPTIONS[:3], "8000,100", f"--column=throughput={column}", *more]
            assert main([str(table), *words, "--json"]) == 0
            (found,) = json.loads(capsys.readouterr().out)["rows"]
            expected = getattr(ceiling(facts, GPUS["l40s"], *arguments), rate)
            assert found["predicted_ceiling_tokens_per_s"] == pytest.approx(expected)


ONE, EIGHT = 518, 8 * 518  # tokens/s of one H100 NVL with one sequence, and of eight


def audited(text, tmp_path, capsys, *options):
    table = tmp_path / "pasted.md"
    table.write_text(text.lstrip())
    assert main([str(table), *OPTIONS, *options, "--json"]) == 0
    return json.loads(capsys.readouterr().out)["rows"]


IN_A_README = r"""
# Speed of a | b

GPU | Seqs | tok/s
--- | :-: | ---
1x NVIDIA H100 80GB SXM | 1 | **11.2k**[^1]
 | 256 | 4000-4100

[^1]: warm
"""
LAB_SEQUENCES = """
| `--max-num-seqs` | 1 | 256 |
|---|---|---|
| H200 tok/s | 11,939 | 11,883 |
| H200 TTFT (ms) | 45 | 44 |
| A100 PCIe tok/s | ~5,241 | 5,240 |
"""
LAB_BLOCKS = """
| | block size 8 | block size 16 |
|---|---|---|
| H200 tok/s | 11,977 | 11,977 |
| L40S: tok/s | n/a | ~4,040 |
"""
TRANSPOSED = """
| max_num_seqs | H200   | A100 PCIe |
|--------------|--------|------|
| 1            | 11,939 | OOM  |
| 256          | 11,883 | 5,240 |
"""
METRICS = """
| Metric | H200 | A100 PCIe |
|---|---|---|
| Throughput (tok/s, 1 user) | 11,939 | 90 |
| TTFT (ms) | 45 | 44 |
| GPU utilization (%) | 95 | 94 |
"""
DATED = "date,gpu,ctx,c,requests/s,samples/s,best\n2026-07-26,H200,131072,1,45,9,639 tok/s\n"
BAD, GOOD, OPEN = "impossible", "possible", "unknown"


@pytest.mark.parametrize(
    ("text", "verdicts"),
    [
        (IN_A_README, [BAD, GOOD]),
        (LAB_SEQUENCES, [BAD, GOOD, BAD, GOOD]),
        (LAB_BLOCKS, [GOOD] * 3),
        (TRANSPOSED, [BAD, OPEN, GOOD, GOOD]),
        (METRICS, [BAD, GOOD]),
        (DATED, [BAD]),
        ("GPU / max-num-seqs,1,4,% of H200\nH200,11939,11977,100\nL40S,n/a,4036,34\n", [BAD, BAD, BAD]),
        ("GPU,max_num_seqs=1,max_num_seqs=256\nH200,639,639\n", [BAD, GOOD]),
        ("GPU,vLLM,HF\nA100 PCIe,5241,293\n", [GOOD] * 2),
        ("GPU\tvLLM (tok/s)\tHF (tok/s)\tSpeed-up\nH100\t9,000\t500\t18x\n", [GOOD] * 2),
        ("GPU;Batch;Tokens/s;Use %\nH200;1;11939;95\nH200;1;2.144,2;95\n", [BAD, OPEN]),
        ("gpu,seqs,output tok/s,total tok/s,prompt tok/s\nH200,1,400,400,99999\n", [BAD, GOOD]),
        ("gpu,seqs,samples,tok/s\nH100 (AWS P5),1,9,900\n", [BAD]),
        ("gpu,in flight,result\nH100,1,900 t/s\nH100,1,9 samples/s\n", [BAD]),
        ("model,gpu,tok/s\n[Llama-3.1-8B](https://x.org/qwen),H100,9\n[Qwen3](llama),H100,9\n", [GOOD, OPEN]),
    ],
)
def test_tables_as_people_paste_them(text, verdicts, tmp_path, capsys):
    assert [row["verdict"] for row in audited(text, tmp_path, capsys)] == verdicts


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("metric,unit,vllm\nthroughput,tok/s,9\n", "no column names the GPU"),
        ("gpu,max_num_seqs\nH200,1\n", "no heading, row or field says that a number is a rate"),
        ("date,gpu,ctx,note\n2026-07-26,H200,131072,fast\n", "no heading, row or field says that a number is a rate"),
    ],
)
def test_a_table_without_what_is_needed_is_refused(text, message, tmp_path, capsys):
    (tmp_path / "table.csv").write_text(text)
    assert main([str(tmp_path / "table.csv"), *OPTIONS]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "ceilings"),
    [
        # Marks of footnotes, dates, links and limits around a rate change nothing.
        ("date,GPU,run,TP (1),Conc.*,tok/s [^1]\n2026-07-26,H100,[x/c64](../a-1.md),8,1,1\n", [EIGHT]),
        *(
            (f"GPU,TP{mark},Conc{mark},tok/s{mark}\nH100,8,1,1\n", [EIGHT])
            for mark in ("\u00b9", "\u2020\u2020", "*", "**", " (2)", " [a]", "^1", "<sup>1</sup>")
        ),
        *(
            (f"GPU,c,{heading},TP\nH100,1,1,8\n", [ONE])
            for heading in ("tok/s/GPU", "Throughput (tok/s/GPU)", "Tput/GPU", "per-GPU tok/s", "tok/s (per device)")
        ),
        ("GPU,c,tok/s,tok/s/W\nH100 on AWS,1,1,9\nAWS P5 (H100),1,1,9\nH100 [p5.48xlarge],1,1,9\n", [ONE] * 3),
        ("GPU,TP,c,tok/s\nH100,8,1,1\nH100,1,1,1\nH100,,1,1\n", [EIGHT, ONE, ONE]),
        ("GPU,# GPUs,TP,DP,c,tok/s\nH100,8,4,2,1,1\n", [EIGHT]),
        ("GPU,c,tok/s\n8xH100,1,1\nH100 x8,1,1\n1x H100,1,1\nH100 (TP8),1,1\n", [EIGHT, EIGHT, ONE, EIGHT]),
        ("Case,8xH100,H100\nConcurrency 1,1,1\n", [EIGHT, ONE]),
        ("Hardware,No. of GPUs,c,tok/s\nH100,8,1,1\n", [EIGHT]),
        ("GPU,Setup,c,tok/s\nH100,TP4+PP2,1,1\nH100,tp4_dp2,1,1\nH100,2xTP4,1,1\nH100,DEP8,1,1\n", [EIGHT] * 4),
        ("GPU,c,tok/s\n8-GPU H100,1,1\nH100 (8x),1,1\n8*H100,1,1\n", [EIGHT] * 3),
        # 1.008 TB/s for 15.01 GB per step; no count of cards.
        ("GPU,c,tok/s\nRTX 4090,1,1\nRTX4090 24G,1,1\n2x RTX 4090,1,1\n", [134.3, 134.3, 268.6]),
        # Each of eight engines has its own sequences; requests at once are those of all.
        ("GPU,DP,max_num_seqs,tok/s\nH100,8,1,1\n", [EIGHT * 7.9]),
        ("GPU,DP,concurrency,tok/s\nH100,8,1,1\n", [EIGHT]),
    ],
)
def test_several_devices_are_judged_by_their_sum(text, ceilings, tmp_path, capsys):
    found = [row["predicted_ceiling_tokens_per_s"] for row in audited(text, tmp_path, capsys)]
    assert found == pytest.approx(ceilings, rel=0.02)


def test_the_number_of_devices_may_be_given(tmp_path, capsys):
    (row,) = audited("GPU,c,tok/s/GPU\nH100,1,100\n", tmp_path, capsys, "--devices=8")
    assert (row["verdict"], row["predicted_ceiling_tokens_per_s"]) == ("possible", pytest.approx(ONE, rel=0.02))
    (row,) = audited("GPU,c,tok/s\nH100,1,100\n", tmp_path, capsys, "--devices=8")
    assert row["predicted_ceiling_tokens_per_s"] == pytest.approx(EIGHT, rel=0.02)


@pytest.mark.parametrize(
    ("text", "reasons"),
    [
        ("GPU,Llama 2,Qwen 3\nH100,1500,200\n", ["model 'Llama 2'", "model 'Qwen 3'"]),
        ("GPU,70B tok/s\nH100,1\n", ["model '70B'"]),
        ("GPU,Quantization,tok/s\nH100,Q4_K_M,1\nH100,none,1\n", ["precision is 'Q4_K_M'", None]),
        ("GPU,4-bit tok/s,16-bit tok/s\nH100,1,1\n", ["precision is '4-bit'", None]),
        ("GPU,Model,tok/s\nH100,Llama-3-70B,1\nH100,Llama 3.1 8B,1\n", ["model 'Llama-3-70B'", None]),
        ("GPU,TP,tok/s\nH100,auto,1\n", ["tp is 'auto'"]),
        ("GPU,ISL/OSL,tok/s\nH100,long,1\n", ["'long' is not two lengths"]),
        ("GPU,EAGLE-3,vLLM\nH100,1,1\n", ["several tokens per step", None]),
        ("GPU,Speculative,tok/s\nH100,ngram,1\nH100,no,1\n", ["several tokens per step", None]),
    ],
)
def test_a_row_that_contradicts_what_is_assumed_is_unknown(text, reasons, tmp_path, capsys):
    for row, reason in zip(audited(text, tmp_path, capsys), reasons, strict=True):
        assert (row["verdict"], (reason or "") in row["reason"]) == ("unknown" if reason else "possible", True)


@pytest.mark.parametrize(
    "text",
    [
        "GPU,ISL,OSL,c,tok/s\nH100,8000,100,1,1\n",
        "GPU,ISL/OSL,c,tok/s\nH100,8k/100,1,1\n",
        "GPU,c,tok/s (ISL=8000 OSL=100)\nH100,1,1\n",
        "GPU,Prompt length (tokens),Completion tokens,c,tok/s\nH100,8000,100,1,1\n",
    ],
)
def test_lengths_of_the_table_count(text, tmp_path, capsys):
    (row,) = audited(text, tmp_path, capsys)
    expected = ceiling(LLAMA, GPUS["h100-nvl"], 1, MeanLengths(8000, 100)).total_tokens_per_s
    assert row["predicted_ceiling_tokens_per_s"] == pytest.approx(expected)


def test_a_column_that_is_not_recognised_is_named(tmp_path, capsys):
    text = "Box,Parallel,Speed\nH100,1,900\n"
    named = [f"--column={word}" for word in ("gpu=Box", "sequences=Parallel", "throughput=Speed")]
    (row,) = audited(text, tmp_path, capsys, *named)
    assert (row["verdict"], round(row["predicted_ceiling_tokens_per_s"])) == ("impossible", ONE)
    table = tmp_path / "pasted.md"
    table.write_text("GPU,Ways,tok/s\nH100,1,900\n")
    assert main([str(table), *OPTIONS]) == 0
    assert "not read: Ways" in " ".join(capsys.readouterr().out.split())
    assert main([str(table), *OPTIONS, "--column=tp=Way"]) == 2
    assert "no column 'Way'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"model_type": "made_up"}, "model_type 'made_up' is not supported"),
        ({"model_type": "mistral", "sliding_window": 64}, "layers with memory of kind window of 64"),
    ],
)
def test_a_model_of_unknown_structure_makes_every_row_unknown(config, reason, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "5000")
    llama = json.loads(get_model("llama-3.1-8b-instruct").config.read_text())
    (tmp_path / "config.json").write_text(json.dumps(llama | config))
    words = [MAX_NUM_SEQS, "--model", str(tmp_path), *OPTIONS[2:]]
    assert main(words) == 0
    assert reason in " ".join(capsys.readouterr().out.split())
    assert main([*words, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert ({row["verdict"] for row in rows}, len(rows)) == ({"unknown"}, 20)
