"""What is expected of ratios, beside what claims state of them."""

import pandas as pd
import pytest

from workflow_scripts.catalog.published import PUBLISHED, Published
from workflow_scripts.tables.expected_ratios import expected_ratios

MODEL = "llama-3.1-8b-instruct"
CLAIMS = [Published(PUBLISHED).claim(name) for name in ("h200-over-l40s", "h100-over-a100", "vllm-over-hf-on-a100")]
RATES = {
    ("l40s", "vllm"): {1: 45, 16: 600},
    ("h200", "vllm"): {1: 180, 16: 2100},
    ("h100-sxm", "vllm"): {1: 150, 16: 1900},
    ("a100-pcie-80gb", "vllm"): {1: 90, 16: 1100},
    ("a100-pcie-80gb", "hf-static"): {1: 50, 16: 500},
}


def test_pairs_of_devices_and_of_engines_have_their_range_and_what_was_published():
    rows = [
        {"gpu": gpu, "engine": engine, "model": MODEL, "workload": "chat", "knobs": f"{engine}{n}", "max_num_seqs": n}
        | {"output_tokens_per_s": float(rate)}
        for (gpu, engine), of in RATES.items()
        for n, rate in of.items()
    ]
    table = expected_ratios(pd.DataFrame(rows), CLAIMS).set_index(["a", "b"])
    assert len(table) == 7
    # The one with more bandwidth is the first, whatever the order of the study.
    pair = table.loc[("h200", "l40s")]
    assert pair["bandwidth_ratio"] == pytest.approx(5.56, abs=0.01)
    assert (pair["predicted_low"], pair["predicted_high"], pair["settings"]) == (3.5, 4, 2)
    verdicts = table.dropna(subset="claim").set_index("claim")[["published", "verdict"]]
    assert verdicts.T.to_dict("list") == {
        "h200-over-l40s": [2.95, "contradicted"],
        "h100-over-a100": [2.16, "contradicted"],
        "vllm-over-hf-on-a100": [17.9, "contradicted"],
    }
    engines = table.loc[("vllm", "hf-static")]
    assert (engines["gpu"], engines["predicted_low"], engines["predicted_high"]) == ("a100-pcie-80gb", 1.8, 2.2)
