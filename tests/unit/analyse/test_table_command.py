from pathlib import Path

import pytest

from tests.unit.analyse.synthetic_cells import cell, table
from workflow_scripts.analyse import capacity, effects, fragmentation, limits, ratios, recommend
from workflow_scripts.analyse import engine_gain as engines
from workflow_scripts.analyse.table_command import run, table_parser
from workflow_scripts.analyse.tables import read_table, write_table
from workflow_scripts.catalog.gpus_and_models import CatalogError

DEMO = Path(__file__).parents[3] / "config" / "studies" / "demo.yaml"


def help_of(main, capsys):
    with pytest.raises(SystemExit) as e:
        main(["--help"])
    assert e.value.code == 0
    return " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("main", "module", "written", "texts"),
    [
        (
            ratios.main,
            "ratios",
            "ratios",
            [
                "The speed-up of each device over each other, beside what the devices can do.",
                "--devices DEVICES folder with the measured rates of devices, NAME.json each",
            ],
        ),
        (effects.main, "effects", "effects", ["What each knob does to throughput, and whether it took effect."]),
        (
            engines.main,
            "engine_gain",
            "engines",
            [
                " vLLM against HuggingFace at equal work. ",
                "engine_decomposition.parquet: the gain split into batching and engine; .csv is written beside it",
            ],
        ),
        (
            recommend.main,
            "recommend",
            "recommendations",
            [
                " Which vLLM configuration to serve with. ",
                "--results RESULTS folder that holds all studies",
                "--ttft-p99-s TTFT_P99_S bound on the 99th percentile of the time to the first token",
                "--tpot-p99-s TPOT_P99_S bound on the 99th percentile of the time per output token",
            ],
        ),
    ],
)
def test_help_documents_files_options_and_an_example(main, module, written, texts, capsys):
    shown = help_of(main, capsys)
    expected = [
        *texts,
        "--study STUDY the study's YAML file",
        "--cells CELLS its cells.parquet",
        f"--out OUT {written}.parquet; {written}.csv is written beside it",
        f"example: python -m workflow_scripts.analyse.{module} --study config/studies/demo.yaml"
        f" --cells results/demo/tables/cells.parquet --out results/demo/tables/{written}.parquet",
    ]
    assert [text for text in expected if text not in shown] == []


FILES = ["--study", "--cells", "--out"]
FILES_OF = {
    effects.main: FILES,
    engines.main: [*FILES, "--decomposition-out"],
    fragmentation.main: [*FILES, "--parsed"],
    limits.main: [*FILES, "--parsed", "--devices", "--checked-out"],
    capacity.main: [*FILES, "--predictions"],
}


@pytest.mark.parametrize(("main", "missing"), [(main, name) for main, names in FILES_OF.items() for name in names])
def test_every_file_must_be_named(main, missing, capsys):
    command = dict.fromkeys(FILES_OF[main], "a")
    del command[missing]
    with pytest.raises(SystemExit) as e:
        main([word for pair in command.items() for word in pair])
    assert e.value.code == 2
    assert f"required: {missing}" in capsys.readouterr().err


@pytest.mark.parametrize(
    "main", [m.main for m in (capacity, effects, engines, fragmentation, limits, ratios, recommend)]
)
def test_the_example_of_the_help_can_be_typed_in(main, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "1000")  # nothing is broken at a hyphen
    _, _, example = help_of(main, capsys).partition("example: python -m ")
    module, *arguments = example.split()
    assert module == main.__module__
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    assert capsys.readouterr().err == "config/studies/demo.yaml: there is no such study file\n"


def test_a_command_makes_its_tables_from_the_study_and_its_cells(tmp_path):
    cells = table(cell({"max_num_seqs": 1}), cell({"max_num_seqs": 2}))
    write_table(cells, tmp_path / "cells.parquet")
    out, other = tmp_path / "out" / "effects.parquet", tmp_path / "other.parquet"

    def make(args, study, read):
        assert (args.study, args.cells, args.out) == (DEMO, tmp_path / "cells.parquet", out)
        assert study.name == "demo"
        yield args.out, "cells", read[:1]
        yield other, "cells", read

    command = ["--study", str(DEMO), "--cells", str(tmp_path / "cells.parquet"), "--out", str(out)]
    assert run(table_parser("effects", "Try."), command, make) == 0
    written = [read_table(path, "cells")["cell_id"].tolist() for path in (out, other)]
    assert written == [cells["cell_id"].tolist()[:1], cells["cell_id"].tolist()]


def test_a_fault_of_any_input_is_one_message(tmp_path, capsys):
    write_table(table(cell({"max_num_seqs": 1})), tmp_path / "cells.parquet")

    def fail(*_):
        raise CatalogError("unknown GPU 'x'")

    parser = table_parser("effects", "Try.")
    command = ["--study", str(DEMO), "--cells", str(tmp_path / "cells.parquet"), "--out", str(tmp_path / "out.parquet")]
    assert run(parser, command, fail) == 2
    assert capsys.readouterr().err == "unknown GPU 'x'\n"


@pytest.mark.parametrize(("options", "gpus"), [({}, ["h200"]), ({"simulated": True}, ["h200", "l40s"])])
def test_nothing_is_concluded_from_a_pretended_gpu(tmp_path, options, gpus):
    both = table(cell({}), cell({}, gpu="l40s", source="simulated"))
    write_table(both, tmp_path / "cells.parquet", "cells")
    read = []
    files = ["--cells", str(tmp_path / "cells.parquet"), "--out", str(tmp_path / "out.parquet")]
    found = run(
        table_parser("effects", "x"),
        ["--study", str(DEMO), *files],
        lambda args, study, cells: read.extend(cells["gpu"]) or [],
        **options,
    )
    assert (found, read) == (0, gpus)
