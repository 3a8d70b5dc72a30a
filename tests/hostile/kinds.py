"""Kinds of hostile files: each function makes a case from the real files of a small study, and returns the commands
that read it. Everything follows from the random generator that it gets."""

import json
import os
import shutil
import tarfile
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random

import numpy as np
import pandas as pd
import yaml

from benchmarks.analysis import commands
from tests.hostile import mutations
from tests.hostile.grammar import patterns
from workflow_scripts.common.checkout import CHECKOUT

STUDIES = sorted((CHECKOUT / "config/studies").glob("*.yaml"))
LOGS = sorted((CHECKOUT / "tests/fixtures/logs").glob("*.log"))
MODEL = CHECKOUT / "config/models/llama-3.1-8b-instruct/config.json"
CSV = b"timestamp, memory.used [MiB], power.draw [W]\n" + b"2026/05/30 16:23:28.000, 71 MiB, 640 W\n" * 3
NAME = "two_gpus"
LONG = "x" * 20_000
# One cell of each kind, by a part of its path.
KEPT = ("opt-125m", "bs8-", "bs32-", "chat/bs16-seqs256", "chat/bs16-seqs64", "h100-sxm/hf-static")
# A command by its name, with its words.
Call = tuple[str, list[str]]


class Base:
    """A small study with its evidence and everything that is made of it, below `folder`."""

    def __init__(self, folder: Path) -> None:
        self.study, self.root = folder / f"{NAME}.yaml", folder / "results" / NAME
        self.tables = self.root / "tables"
        self.cpu_s: dict[str, float] = {}  # what each command took for the real files
        self.resident_bytes = 0  # of the process that makes cases, before it made one

    def lay_out(self) -> None:
        """Write the study and its evidence."""
        content = yaml.safe_load((CHECKOUT / f"config/studies/{NAME}.yaml").read_text())
        sweeps = {sweep["name"]: sweep for sweep in content["sweeps"]}
        sweeps["max-num-seqs"]["knobs"] = {"max_num_seqs": [256, 64]}
        sweeps["block-size"]["knobs"] = {"block_size": [8, 32]}
        content["sweeps"] = [sweeps[name] for name in ("smoke", "max-num-seqs", "hf-baseline-h100", "block-size")]
        self.study.write_text(yaml.safe_dump(content | {"claims": [], "repeats": 2}, sort_keys=False))
        with tarfile.open(CHECKOUT / f"config/reference/{NAME}/evidence.tar.xz") as packed:
            packed.extractall(self.root.parent, filter="data")
        for cell in self.root.glob("cells/*/*/*/*/*"):
            if not any(part in cell.as_posix() for part in KEPT):
                shutil.rmtree(cell)

    def calls(self) -> dict[str, Call]:
        """The commands that make everything else, by name, in their order."""
        made = {name: (words[1], words[2:]) for name, words in commands(self.study).items() if name != "figures"}
        of_study = ["--study", str(self.study), "--results", str(self.root.parent)]
        parses = {gpu: ("parse-cells", self.parsed(gpu)) for gpu in ("h200", "h100-sxm")}
        after = {"page": made.pop("page")}
        return parses | made | after | {"status": ("status", of_study)}

    def tables_call(self, *names: str) -> Call:
        """The command that makes these tables, or all."""
        words = ["--study", str(self.study), "--results", str(self.root.parent)]
        return "tables", [*words, *(["--only", *names] if names else [])]

    def parsed(self, gpu: str) -> list[str]:
        folders = ["--cells", str(self.root / "cells"), "--out", str(self.root / "parsed" / gpu)]
        return [*folders, "--gpu", gpu, "--processes=1"]

    def copy(self, folder: Path) -> "Base":
        """The same in another folder; files are links to the same content until they are replaced."""
        shutil.copytree(self.study.parent, folder, copy_function=os.link, dirs_exist_ok=True)
        return Base(folder)


def put(path: Path, content: bytes) -> str:
    """Replace a file, but not the one to which it is a link."""
    path.unlink(missing_ok=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return str(path)


def changed(path: Path, mutated: Callable[[bytes, Random], bytes], rnd: Random) -> None:
    put(path, mutated(path.read_bytes() if path.exists() else b"", rnd))


def evidence(base: Base, rnd: Random, folder: Path) -> Sequence[Call]:
    """What a cell's folder holds, and names in it; all that is made of the cells."""
    of = base.copy(folder)
    cell = rnd.choice(sorted(path.parent for path in of.root.glob("cells/**/outcome.json")))
    how = rnd.randrange(12)
    if how < 4:
        changed(cell / "outcome.json", mutations.json_file, rnd)
    elif how < 8:
        name = rnd.choice(("requests", "steps", "metrics", "device_trace"))
        changed(cell / f"raw/{name}.jsonl", mutations.jsonl_file, rnd)
    elif how < 10:
        changed(cell / "raw/engine.log", mutations.text_file, rnd)
    elif how == 10:
        path = rnd.choice(sorted(path for path in cell.rglob("*") if path.is_file()))
        path.unlink()
        rnd.choice((os.mkdir, os.mkfifo, Path.touch, Path.exists))(path)
    else:
        starts = [
            f"{cell.name}/{name}" for name in ("start-9", "start-99999999999999999999", "start-0", "start-\u0663")
        ]
        copy = cell.parent / rnd.choice((*starts, "a\nb", "$(touch hacked)", os.fsdecode(b"\xff")))
        shutil.copytree(cell, copy, copy_function=os.link, dirs_exist_ok=True)
    calls = of.calls()
    gpu = cell.relative_to(of.root / "cells").parts[0]
    last = rnd.choice(("comparisons", "fragmentation", "devices", "intervals", "page", "status"))
    return [calls[gpu], of.tables_call("cells"), calls.get(last) or of.tables_call(last)]


def runs(base: Base, rnd: Random, folder: Path) -> Sequence[Call]:
    """Two runs, of which one has another table."""
    of = base.copy(folder)
    repeats = of.tables / "repeats.parquet"
    later = pd.read_parquet(repeats).assign(started_at="2027-01-01T00:00:00Z")
    put(repeats, later.to_parquet(index=False))
    path = of.tables / f"{rnd.choice(('cells', 'starts', 'repeats'))}.parquet"
    put(path, _other_table(path, rnd))
    endless(path, rnd)
    words = [*rnd.sample([str(base.root), str(of.root)], 2), "--json", "c.json"]
    return [("compare", [*words, *rnd.choice((["--html", "c.html"], ["--fail-if-worse"], []))])]


def endless(path: Path, rnd: Random) -> None:
    """Now and then, put something without an end in the place of a file."""
    if rnd.random() < 0.05:
        path.unlink()
        rnd.choice((os.mkfifo, lambda path: path.symlink_to("/dev/zero")))(path)


def imports(base: Base, rnd: Random, folder: Path) -> Sequence[Call]:
    """The mapping file of imported runs, their logs and their traces."""
    run = {"gpu": "h200", "engine": "vllm", "model": "llama-3.1-8b-instruct", "workload": "chat", "results": "a.log"}
    knobs = {"max_num_seqs": 64, "block_size": 16, "gpu_memory_utilization": 0.9, "kv_cache_dtype": "auto"}
    runs = [
        {**run, "knobs": knobs, "tokens_per_request": [220, 190], "trace": "a.csv"},
        {**run, "knobs": {"max_num_seqs": 1}, "rates": {"output_tokens_per_s": 650.0}},
        {**run, "engine": "hf-static", "knobs": {"batch_size": 4}, "rates": {"requests_per_s": 2}},
    ]
    name = rnd.choice((*["a.log"] * 9, "/etc/passwd", "../../a.log", "a\0b", "/dev/zero", "a.csv", "."))
    runs[rnd.randrange(3)] |= {rnd.choice(("results", "trace")): name}
    put(folder / "a.log", rnd.choice((rnd.choice(LOGS).read_bytes(), mutations.results_file(rnd))))
    put(folder / "a.csv", CSV)
    put(folder / "runs.yaml", yaml.safe_dump({"schema_version": 1, "runs": runs}).encode())
    mutated = {"a.log": mutations.text_file, "a.csv": mutations.csv_file, "runs.yaml": mutations.yaml_file}
    name = rnd.choice(["runs.yaml", *mutated])
    changed(folder / name, mutated[name], rnd)
    endless(folder / "a.log", rnd)
    of = base.copy(folder)
    read = ("read-imported", ["--runs", "runs.yaml", "--out", str(of.root / "imported.jsonl")])
    return [read, of.tables_call("cells")]


def logs(base: Base, rnd: Random, folder: Path) -> Sequence[Call]:
    """Logs of engines and traces of devices."""
    how = rnd.randrange(3)
    if how == 0:
        return [("log", [put(folder / "a", mutations.results_file(rnd))])]
    if how == 1:
        return [("trace", [put(folder / "a", mutations.csv_file(CSV, rnd))])]
    return [("log", [put(folder / "a.log", mutations.text_file(rnd.choice(LOGS).read_bytes(), rnd))])]


def tables(base: Base, rnd: Random, folder: Path) -> Sequence[Call]:
    """Parquet tables: damaged ones, and those whose columns hold something else."""
    of = base.copy(folder)
    path = rnd.choice(sorted(of.tables.rglob("*.parquet")) + sorted(of.root.glob("parsed/*/*.parquet")))
    put(path, mutations.damaged(path.read_bytes(), rnd) if rnd.random() < 0.4 else _other_table(path, rnd))
    is_parsed = of.tables not in path.parents
    of_tables = ("comparisons", "devices", "intervals", "recommendations")
    names = ("fragmentation",) if is_parsed else of_tables
    name, calls = rnd.choice(("page", rnd.choice(names))), of.calls()
    # The page reads every table, and the others few.
    return [*([of.tables_call("cells")] if is_parsed else []), calls.get(name) or of.tables_call(name)]


def _other_table(path: Path, rnd: Random) -> bytes:
    table = pd.read_parquet(path)
    name = rnd.choice([*table])
    texts, numbers = mutations.PAYLOADS, (-1.0, 0.0, 1e308, -1e308, 5e-324, float("nan"), float("inf"))
    made: tuple[Callable[[], pd.DataFrame], ...] = (
        lambda: table.drop(columns=name),
        lambda: table.rename(columns={name: rnd.choice(texts)}),
        lambda: pd.concat([table] * rnd.choice((2, 20))),
        lambda: table.head(0),
        lambda: table.assign(**{name: rnd.choice((None, True, "x", 1.5))}),
        lambda: table.assign(**{name: [rnd.choice(texts) for _ in range(len(table))]}),
        lambda: table.assign(**{name: [rnd.choice(numbers) for _ in range(len(table))]}),
        lambda: table.assign(**{name: table[name].sample(frac=1, random_state=rnd.randrange(99)).to_numpy()}),
    )
    made += (
        lambda: pd.DataFrame({name: ["x" * 2**20 + str(i) for i in range(rnd.choice((50, 200)))]}),
        lambda: pd.DataFrame({name: np.zeros(rnd.choice((10**6, 10**7)))}),
        lambda: pd.DataFrame({name: [rnd.choice(({"x": LONG}, [LONG], LONG.encode(), LONG))] * 2000}),
        lambda: table.head(1).loc[[table.index[0]] * 10**6] if len(table) else table,
    )
    return rnd.choice(made)().to_parquet(index=False, compression="zstd")


def records(base: Base, rnd: Random, folder: Path) -> Sequence[Call]:
    """Records in a study's results apart from its cells, a model's config, and what `kvsweep log` prints."""
    of, how = base.copy(folder), rnd.randrange(4)
    if how == 0:
        changed(of.root / "plan/capacity.jsonl", mutations.jsonl_file, rnd)
        return [of.tables_call("memory")]
    if how == 1:
        changed(rnd.choice(sorted(of.root.glob("prepared/devices/*.json"))), mutations.json_file, rnd)
        return [of.tables_call(rnd.choice(("cells", "devices", "intervals")))]
    log = {"available_kv_cache_gib": 20.5, "num_gpu_blocks": 1000, "engine_version": "0.32.0"}
    of_log = ["--from-log", put(folder / "log.json", mutations.json_file(json.dumps(log).encode(), rnd))]
    config = json.loads(MODEL.read_bytes())
    if rnd.random() < 0.3:
        names = ["re:" + rnd.choice((*map(str, patterns()), "(a+)+$", "(.*)*x", "(", ".*mlp.*"))]
        config["quantization_config"] = {"quant_method": "compressed-tensors", "ignore": names, "config_groups": {}}
    put(folder / "model/config.json", mutations.json_file(json.dumps(config).encode(), rnd))
    sizes = ["--gpu", "h200", "--block-size", "16", "--gpu-memory-utilization", "0.9", "--max-model-len", "2048"]
    return [("capacity", [*sizes, *(["--model", "model"] if how == 2 else ["--model", "opt-125m", *of_log])])]


def studies(base: Base, rnd: Random, folder: Path) -> Sequence[Call]:
    """Study files."""
    path = rnd.choice((base.study, *STUDIES))
    return [("check", [put(folder / path.name, mutations.yaml_file(path.read_bytes(), rnd))])]


KINDS = {make.__name__: make for make in (evidence, runs, imports, logs, tables, records, studies)}
