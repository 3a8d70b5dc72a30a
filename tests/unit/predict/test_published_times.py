"""The form of the model against what others measured on GPUs: times of operators, and speeds under a default."""

import csv

import numpy as np
import pandas as pd
import pytest

from tests.unit.made_models import shape
from workflow_scripts.catalog.gpus_and_models import CONFIG, get_gpu, models_by_repo, resolve
from workflow_scripts.engines.steps import EngineSteps, SchedulerSettings
from workflow_scripts.physics.model_facts import model_facts, read_model_facts
from workflow_scripts.physics.step_time import LaunchCosts, StepCosts, StepWork, segment_times_s
from workflow_scripts.predict.calibrated import default_speed
from workflow_scripts.predict.pipeline_fit import Observed, fit_pipeline
from workflow_scripts.predict.schedule import RequestLengths
from workflow_scripts.predict.scheduler import make_schedule
from workflow_scripts.predict.step_fit import fit_sums
from workflow_scripts.predict.timing import activation_bytes_per_token, matrix_flops, step_work, time_schedule

SHAPES = {
    "meta-llama/Llama-2-7b-hf": {"hidden": 4096, "inner": 11_008, "heads": 32, "kv_heads": 32},
    "meta-llama/Llama-2-70b-hf": {"hidden": 8192, "inner": 28_672, "heads": 64, "kv_heads": 8},
    "meta-llama/Meta-Llama-3-8B": {"hidden": 4096, "inner": 14_336, "heads": 32, "kv_heads": 8},
}
LLAMA = shape("llama", layers=1, positions=4096, vocab=32_000, torch_dtype="float16")


def operator_times():
    """Rows of the published table, with the work and the time of one layer's operators without attention."""
    table = pd.read_csv(CONFIG / "published/operator_times.csv")
    operators = [name for name in table if name.endswith("_ms") and name != "emb_ms"]
    table["seconds"] = table[operators].sum(axis=1) / 1000
    return table


def work_of(rows):
    works = []
    for row in rows.itertuples():
        facts, ranks = model_facts(LLAMA | shape(**SHAPES[row.model])), row.num_tensor_parallel_workers
        tokens = row.num_tokens
        flops = matrix_flops(facts, np.array([float(tokens)]), np.zeros(1)) / ranks
        read = {"weight_bytes": facts.layer_matrix_parameters * 2 / ranks, "matrix_flops": flops}
        # One layer is a part of a step, not a step of its own.
        moved = {"activation_bytes": tokens * activation_bytes_per_token(facts, ranks), "layers": 1.0, "steps": 0.0}
        works.append(StepWork.of(np.ones(1), read | moved, {}))
    return StepWork(*(np.concatenate([getattr(work, name) for work in works]) for name in ("steps", "first", "growth")))


def error_pct(fitted, tested, overlap=True):
    """Errors without sign of the times of `tested`, by costs fitted to `fitted`."""
    rows, times_s = work_of(fitted).first, fitted["seconds"].to_numpy()
    if overlap:
        each = [Observed(row[None], np.array([seconds])) for row, seconds in zip(rows, times_s, strict=True)]
        more = {"layers": 3e-5, "activation_bytes": 5e-13, "launch": LaunchCosts()}
        begin = StepCosts.of_rates(2e12, 4e14, 0).model_copy(update=more)
        costs = fit_pipeline(each, np.ones(len(each)), begin, within=np.inf)
    else:
        costs = fit_sums(rows, times_s)
    predicted = segment_times_s(work_of(tested), costs)
    return np.abs(100 * (predicted / tested["seconds"].to_numpy() - 1))


@pytest.mark.parametrize(("gpu", "median", "p90"), [("a100", 4, 15), ("h100", 4, 13), ("a40", 5.5, 13)])
def test_four_costs_meet_the_operator_times_of_all_models_of_a_gpu(gpu, median, p90):
    rows = operator_times().query("gpu == @gpu")
    errors, adding = error_pct(rows, rows), error_pct(rows, rows, overlap=False)
    assert (np.median(errors) < median, np.percentile(errors, 90) < p90) == (True, True)
    # On a GPU the slower of reading and computing decides; adding them up is worse.
    assert np.median(errors) < np.median(adding)


OF_OTHERS = {("a100", "Llama-2-70b-hf"): 4, ("a100", "Llama-2-7b-hf"): 6.5, ("a100", "Meta-Llama-3-8B"): 3.5}
OF_OTHERS |= {("h100", "Llama-2-70b-hf"): 5.5, ("h100", "Llama-2-7b-hf"): 5.5}


@pytest.mark.parametrize(("gpu", "model"), OF_OTHERS)
def test_the_operator_times_of_other_models_predict_those_of_a_model(gpu, model):
    rows = operator_times().query("gpu == @gpu")
    own = rows["model"] == f"meta-llama/{model}"
    assert np.median(error_pct(rows[~own], rows[own])) < OF_OTHERS[gpu, model]


@pytest.mark.parametrize(("gpu", "worst"), [("rtx4090", 10), ("l4", 50)])
def test_the_default_shares_meet_published_sweeps(gpu, worst):
    with (CONFIG / "published/concurrency_sweeps.csv").open(encoding="utf-8", newline="") as lines:
        rows = [row for row in csv.DictReader(lines) if resolve(row["gpu"])[0].name == gpu]
    assert rows
    for row in rows:
        model, clients = models_by_repo()[row["model"]], int(row["concurrency"])
        prompts = int(row["num_prompts"] or 20 * clients)
        facts = read_model_facts(model.config, model.fixed_dtype)
        requests = RequestLengths(*(np.full(prompts, int(row[name])) for name in ("prompt_tokens", "output_tokens")))
        # A client sends its next request when it has the answer: like a waiting request that gets a free place.
        settings = SchedulerSettings(clients, 2048, 16, facts.max_positions, async_scheduling=False)
        schedule = make_schedule(requests, settings)
        speed = default_speed(get_gpu(gpu), facts.dtype)
        work = step_work(schedule.segments, facts, EngineSteps(settings, facts.max_positions))
        timed = time_schedule(schedule, work, speed.costs, requests)
        predicted = requests.output_tokens.sum() / timed.wall_s
        assert abs(100 * (predicted / float(row["output_tokens_per_s"]) - 1)) < worst
