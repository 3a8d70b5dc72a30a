"""Conversations as their users see them, from requests made up for the purpose."""

import numpy as np
import pytest

from tests.unit.made_studies import made_study
from tests.unit.questions.parsed_tables import served, write_parsed
from tests.unit.questions.synthetic_cells import cell, table
from workflow_scripts.questions.serving.conversations import SCHEMA, conversation_table

SENT = np.array([0.0, 2.0, 2.5, 6.0, 10.0, 12.0, 12.5, 16.0])
DIALOGUES = {
    **{"kind": "multi_turn", "num_prompts": 8, "turns": 4, "prompt_tokens": 10, "output_tokens": 4},
    **{"answers": "real"},
}


def test_latency_of_conversations_and_first_tokens_and_hits_by_turn(tmp_path):
    study = made_study(
        {
            "gpu": "cpu-all",
            "engine": "vllm-serve",
            "model": "tiny-llama-57m",
            "workload": "chat",
            "knobs": {"users": 1},
        },
        name="try",
        workloads={"chat": DIALOGUES},
    )
    rows = cell({"users": 1}, engine="vllm-serve", gpu="cpu-all", model="tiny-llama-57m")
    first = np.array([0.1, 0.2, 0.2, 0.4] * 2)
    last = np.array([1.0, 1.5, 2.5, 2.0, 1.0, 1.5, 2.5, 4.0])
    requests = served(SENT, SENT + first, SENT + last, outputs=4).assign(
        request_id=[str(i) for i in range(8)], prompt_tokens=[10, 14, 14, 32] * 2, cached_prompt_tokens=[0, 0, 0, 8] * 2
    )
    write_parsed(tmp_path / "cpu-all", "requests", requests.assign(cell_id=rows[0]["cell_id"]))
    found = SCHEMA.validate(conversation_table(study, table(rows), tmp_path))
    assert found[["turn", "count"]].fillna(0).to_numpy().tolist() == [[0, 2], *([turn, 2] for turn in range(1, 5))]
    assert found["e2e_s_p50"].tolist() == pytest.approx([9.0, 1.0, 1.5, 2.5, 3.0])
    assert found["ttft_s_p50"].tolist() == pytest.approx([0.1, 0.1, 0.2, 0.2, 0.4])
    assert found["prefix_cache_hit_rate"].tolist() == pytest.approx([16 / 140, 0, 0, 0, 0.25])
