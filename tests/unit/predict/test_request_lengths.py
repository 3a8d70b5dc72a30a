from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from workflow_scripts.predict.forecast import lengths_of
from workflow_scripts.predict.schedule import SchedulerSettings
from workflow_scripts.predict.scheduler import make_schedule
from workflow_scripts.study.study_file import load_study
from workflow_scripts.workloads.make_requests import make_requests
from workflow_scripts.workloads.request import WorkloadError
from workflow_scripts.workloads.vocabulary import Vocabulary
from workflow_scripts.workloads.workload_kinds import IdenticalWorkload, PromptsWorkload

DEMO = load_study(Path("config/studies/demo.yaml"))


@pytest.mark.parametrize("name", ["chat", "shared-prefix"])
def test_they_are_those_of_the_requests_that_are_measured(name):
    spec = DEMO.workloads[name]
    vocabulary = Vocabulary(np.arange(100, 4000), lambda text: [])
    requests, stream = make_requests(spec, vocabulary, 32)
    lengths, kind = lengths_of(spec, 32)
    assert lengths.prompt_tokens.tolist() == [len(r.prompt_token_ids) for r in requests]
    assert lengths.output_tokens.tolist() == [r.output_tokens for r in requests]
    shared = lengths.prefix_tokens is not None and lengths.prefix_tokens.tolist()
    assert shared == ([r.prefix_tokens for r in requests] if name == "shared-prefix" else False)
    assert kind == stream.kind


def test_texts_of_a_file_are_guessed_and_said_to_be(tmp_path):
    path = tmp_path / "prompts.txt"
    path.write_text("eight ch\nfive!\n")
    from workflow_scripts.common.files import sha256_of

    spec = PromptsWorkload(kind="prompts", num_prompts=2, file=path, sha256=sha256_of(path), output_tokens=3)
    lengths, kind = lengths_of(spec, 2)
    assert lengths.prompt_tokens.tolist() == [2, 2]
    assert kind == "prompts, a token for every 4 characters"
    with pytest.raises(WorkloadError, match="3 requests are needed"):
        lengths_of(spec, 3)


def test_answers_to_one_prompt_share_its_full_blocks_in_the_same_step():
    spec = IdenticalWorkload(kind="identical", num_prompts=8, samples=4, prompt_tokens=20, output_tokens=5)
    requests, kind = lengths_of(spec, 8)
    settings = SchedulerSettings(8, 4096, 16, 64, async_scheduling=False)
    schedule = make_schedule(requests, settings)
    assert kind == "identical"
    assert schedule.first_step.tolist() == [0] * 8
    assert schedule.cached_tokens.tolist() == [0, 16, 16, 16] * 2
    # One shared block for each prompt, and one block for each answer.
    assert schedule.peak_blocks_held == 2 + 8
    assert make_schedule(requests, replace(settings, enable_prefix_caching=False)).peak_blocks_held == 2 * 8
