"""The recipe "a claim" of docs/extending.md, whose entry is in docs/claims.md: it alone is a claim with a verdict."""

import re

import pytest
import yaml

from tests.recipes import blocks, recipe
from tests.unit.analyse.claim_evidence import LLAMA, STUDY, evidence, republished
from tests.unit.analyse.synthetic_cells import cell
from workflow_scripts.analyse.claims.claims import claims_table
from workflow_scripts.common.checkout import CHECKOUT

(SECTION,) = re.findall(r"\(claims\.md#([\w-]+)\)", recipe("A claim"))
CLAIMS = (CHECKOUT / "docs" / "claims.md").read_text(encoding="utf-8")
(ENTRY,) = blocks(CLAIMS.partition(f"\n## {SECTION.replace('-', ' ').capitalize()}\n")[2], "yaml")


@pytest.mark.parametrize(
    ("gpu", "few", "verdict"),
    [("h100-sxm", 13_900, "supported"), ("h100-sxm", 20_000, "contradicted"), ("l40s", 13_900, "not testable here")],
)
def test_an_entry_is_a_claim(tmp_path, gpu, few, verdict):
    [claim] = yaml.safe_load(ENTRY)
    published = republished(tmp_path)
    with (published.folder / "claims.yaml").open("a", encoding="utf-8") as file:
        file.write(ENTRY)
    cells = [
        cell({"gpu_memory_utilization": share}, gpu=gpu, model=LLAMA, num_gpu_blocks=number)
        for share, number in ((0.5, few), (0.9, 27_800))
    ]
    study = STUDY.model_copy(update={"claims": (claim["id"],)})
    [row] = claims_table(evidence(published, study, cells=cells)).to_dict("records")
    assert (row["claim_id"], row["verdict"]) == (claim["id"], verdict)
