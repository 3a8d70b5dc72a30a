"""The recipe "a workload" of docs/extending.md: what its class says of shared text is what its requests share."""

from typing import Any

import numpy as np

from tests.recipes import blocks, recipe
from workflow_scripts.predict.predictions import lengths_of
from workflow_scripts.workloads import workload_kinds
from workflow_scripts.workloads.make_requests import make_requests, make_warmup
from workflow_scripts.workloads.request import Vocabulary


def retried() -> Any:
    space = dict(vars(workload_kinds))
    exec(blocks(recipe("A workload"), "python")[0], space)  # code of this repository
    return space["RetriedWorkload"](kind="retried", num_prompts=6, prompt_tokens=32, output_tokens=4)


def test_a_class_is_a_workload():
    spec, vocabulary = retried(), Vocabulary(np.arange(1000), list, list)
    requests, stream = make_requests(spec, vocabulary, 6)
    prompts = [tuple(request.prompt_token_ids) for request in requests]
    assert prompts[0::2] == prompts[1::2]
    assert (len(set(prompts)), {len(prompt) for prompt in prompts}, stream.kind) == (3, {32}, "retried")
    # The warm-up repeats other prompts in the same way.
    warmup = [tuple(request.prompt_token_ids) for request in make_warmup(spec, vocabulary, requests)]
    assert warmup[0::2] == warmup[1::2]
    assert not set(warmup) & set(prompts)
    # Each second request finds the first of its prompt's two blocks; the last token is always computed.
    assert spec.tokens_found(6, block_size=16) == 3 * 16
    lengths, _ = lengths_of(spec, 6)
    assert lengths.prefix_id is not None
    assert lengths.prefix_id.tolist() == [0, 0, 1, 1, 2, 2]
