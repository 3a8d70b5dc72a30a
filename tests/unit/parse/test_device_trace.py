"""Traces from nvidia-smi in every form that it prints."""

import json
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workflow_scripts.parse.device_trace import main, parse_trace, read_trace, summarise

MIB = 2**20
HEADER = "timestamp, index, memory.used [MiB], memory.total [MiB], utilization.gpu [%], power.draw [W]\n"
SAMPLES = [
    ("2024/05/01 12:00:00.000", "0", 1000, 81920, 0, 60.5),
    ("2024/05/01 12:00:01.000", "0", 70321, 81920, 97, 401.25),
    ("2024/05/01 12:00:02.000", "0", 70320, 81920, 100, 420.0),
]
EXTREMES = {
    "rows": 3,
    "memory_used_mib_max": 70321,
    "memory_used_mib_min": 1000,
    "utilization_pct_max": 100,
    "power_w_mean": 293.916667,
}


def lines_of(samples=SAMPLES, units=("", "", " MiB", " MiB", " %", " W")) -> str:
    return "".join(", ".join(map("{}{}".format, sample, units)) + "\n" for sample in samples)


def summary(text) -> dict:
    return summarise(parse_trace(text))


NAMES = "timestamp, index, memory.used, memory.total, utilization.gpu, power.draw"


@given(
    header=st.booleans(),
    units=st.booleans(),
    spaces=st.booleans(),
    mark=st.sampled_from(["", "\ufeff"]),
    newline=st.sampled_from(["\n", "\r\n"]),
    end=st.sampled_from(["", "\n", "\n\n\n"]),
)
def test_forms_of_one_trace(tmp_path_factory, header, units, spaces, mark, newline, end):
    lines = (lines_of() if units else lines_of(units=[""] * 6)).splitlines()
    names = HEADER.strip() if header else NAMES
    text = "\n".join([names, lines[0], names, *lines[1:]]) + end
    text = mark + (text if spaces else text.replace(", ", ",")).replace("\n", newline)
    path = tmp_path_factory.mktemp("trace") / "gpu.csv"
    path.write_bytes(text.encode())
    trace = read_trace(path)
    assert summarise(trace) == {**EXTREMES, "reason": None}
    assert trace.known("memory_used_bytes") == [1000 * MIB, 70321 * MIB, 70320 * MIB]


@pytest.mark.parametrize(
    "null", ["[N/A]", "N/A", "[Not Supported]", "[Unknown Error]", "ERR!", "[GPU requires reset]", ""]
)
def test_what_the_gpu_does_not_report_is_null(null):
    text = HEADER + lines_of(SAMPLES[:1]) + f"2024/05/01 12:00:01.000, 0, {null}, {null}, {null}, {null}\n"
    facts = summary(text)
    assert facts["rows"] == 2
    assert (facts["memory_used_mib_min"], facts["utilization_pct_max"], facts["power_w_mean"]) == (1000, 0, 60.5)


POWERS = "power.draw [W], power.draw.average [W], power.draw.instant [W]\n"


@pytest.mark.parametrize(
    ("text", "name", "value"),
    [
        ("memory.used [MiB], power.draw [W]\n512 MiB, [N/A]\n513 MiB, [N/A]\n", "memory_used_mib_max", 513),
        ("memory.used [MiB], power.draw [W]\n512 MiB, [N/A]\n513 MiB, [N/A]\n", "power_w_mean", None),
        (POWERS + "100.00 W, 90.00 W, 80.00 W\n", "power_w_mean", 100),
        (POWERS + "[N/A], [N/A], 80.00 W\n", "power_w_mean", 80),
        ("power.limit [W], power.draw [W]\n700.00 W, 61.00 W\n", "power_w_mean", 61),
        ("power.draw\n50000 mW\n", "power_w_mean", 50),
        ("memory.used\n1.5 GiB\n", "memory_used_mib_max", 1536),
        ("memory.used\n512 KiB\n", "memory_used_mib_min", 0.5),
        ("memory.used [GiB]\n2\n", "memory_used_mib_max", 2048),
        ("memory.used\n2097152 bytes\n", "memory_used_mib_max", 2),
        ("memory.used, power.draw\n45 %, 61 watts\n", "memory_used_mib_max", None),  # a share of the memory is no size
        ("utilization.memory [%], utilization.gpu [%], fan.speed [%]\n9 %, 4 %, 8 %\n", "utilization_pct_max", 4),
        ("utilization.memory [%], memory.used [MiB]\n90 %, 1 MiB\n", "utilization_pct_max", None),
        ("memory.used [MiB]\n5 MiB\npower.draw [W], memory.used [MiB]\n100 W, 7 MiB\n", "memory_used_mib_max", 7),
    ],
)
def test_fields_and_units(text, name, value):
    assert summary(text)[name] == value


OTHER = f"Unable to determine the device handle for GPU\n{HEADER}No devices were found\n"


@pytest.mark.parametrize(
    ("text", "bad_lines"),
    [
        (HEADER + lines_of() + "2024/05/01 12:00:03.000, 0, 703", 1),
        (HEADER + lines_of() + "2024/05/01 12:00:03.000, 0, 70320 MiB, 81920 MiB, 9 %, 4", 1),
        (OTHER + lines_of(), 2),
    ],
)
def test_a_line_that_breaks_off_and_lines_of_something_else_are_counted(text, bad_lines):
    assert {**summary(text), "reason": None} == {**EXTREMES, "reason": None}
    assert summary(text)["reason"] == f"{bad_lines} line{'s' * (bad_lines > 1)} without a readable sample"


def test_what_no_query_names_is_not_taken():
    text = HEADER + lines_of() + "pid, used_gpu_memory [MiB]\n4242, 99999 MiB\n" + HEADER + lines_of()
    assert summary(text)["memory_used_mib_max"] == 70321
    assert summary(text)["rows"] == 6
    # Without a header nothing is guessed.
    facts = summary(lines_of())
    assert (facts["rows"], "a first line" in facts["reason"]) == (0, True)


def test_the_command_prints_the_extremes_or_one_message(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "gpu.csv").write_text(HEADER + lines_of())
    assert main(["gpu.csv"]) == 0
    assert json.loads(capsys.readouterr().out) == {**EXTREMES, "reason": None}
    assert main(["missing.csv"]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert "missing.csv: No such file" in err


@pytest.mark.parametrize("path", sorted(Path("tests/fixtures/device_traces").iterdir()), ids=lambda path: path.stem)
def test_tables_of_other_tools(path):
    """The same two samples as each tool prints them."""
    text = path.read_text()
    trace = parse_trace(text)
    assert trace.reason is None
    assert trace.known("memory_used_bytes") == [4 * MIB, 52 * MIB]
    assert [trace.known(name) for name in ("power_w", "utilization_pct")] == [[64, 61], [0, 96]]
    # A header may be printed again, and the first one may be missing.
    assert parse_trace(text + text).samples == [*trace.samples, *trace.samples]


SCRAPED = {
    "POWER_USAGE": ("64", "6.1e+01"),
    "GPU_UTIL": ("0", "96"),
    "FB_USED": ("4", "52"),
}


@pytest.mark.parametrize("labels", ['gpu="{}"', 'UUID="GPU-{}",modelName="A"', 'Hostname="node-{}",gpu="0"'])
@pytest.mark.parametrize("at", ["", " 1772359200000"])
@pytest.mark.parametrize("names", [list(SCRAPED), list(SCRAPED)[::-1]])
def test_a_page_of_dcgm_exporter_has_a_sample_of_each_gpu(labels, at, names):
    lines = [
        f"DCGM_FI_DEV_{name}{{{labels.format(gpu)}}} {SCRAPED[name][gpu]}{at}\n" for name in names for gpu in (0, 1)
    ]
    trace = parse_trace("# HELP DCGM_FI_DEV_GPU_UTIL use\n" + "".join(lines))
    assert [trace.known(name) for name in ("power_w", "utilization_pct")] == [[64, 61], [0, 96]]
    assert trace.known("memory_used_bytes") == [4 * MIB, 52 * MIB]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("timestamp,gpu,mine\n2026-03-01T00:00:00Z,0,535\n", r"known \(mine\): name the fields in a first line"),
        ("| NVIDIA-SMI 580.65 |\n| 45C P0 70W / 700W | 4MiB / 81559MiB |\n", "--query-gpu"),
        ("# gpu   pid  type   sm\n# Idx    #   C/G    %\n    0  4242     C   45\n", "nvidia-smi dmon"),
        ('{"card0": {"GPU use (%)": "35"}}\n', "--csv"),
        ('nvidia_smi_power_draw_watts{uuid="x"} 350\n', "dcgm-exporter"),
        (" \n", "empty"),
    ],
)
def test_a_trace_without_a_value_says_what_would_help(text, reason):
    trace = parse_trace(text)
    assert not trace.known("power_w") + trace.known("utilization_pct")
    assert re.search(reason, trace.reason)
