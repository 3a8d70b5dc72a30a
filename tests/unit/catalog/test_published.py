"""Published claims and tables: how they are read, and which are refused."""

import pytest
import yaml

from workflow_scripts.analyse.limits.predictions import published_table
from workflow_scripts.catalog.gpus_and_models import CONFIG
from workflow_scripts.catalog.published import Claim, Published, PublishedError
from workflow_scripts.common.faults import InputError

REAL = Published(CONFIG / "published")
CLAIM = {
    "id": "one",
    "source": "lab",
    "label": "published",
    "text": "It is so.",
    "quantities": [{"name": "rate", "unit": "tokens/s", "value": 5}],
}


def read(folder, *claims):
    (folder / "claims.yaml").write_text(yaml.safe_dump(list(claims)))
    return Published(folder)


def test_numbers_of_a_claim_by_name_and_setting():
    blocks = REAL.claim("blocks-linear-in-utilization")
    assert blocks.quantity("num_gpu_blocks", gpu_memory_utilization=0.9).value == 17234
    assert blocks.value("num_gpu_blocks") == 8788
    half = Claim.model_validate(CLAIM | {"quantities": [{"name": "rate", "unit": "s", "min": 1}]})
    for name, message in (("speed", "claims.yaml: one: no quantity 'speed'; there are: rate"), ("rate", "needs value")):
        with pytest.raises(PublishedError, match=message):
            half.value(name)


def test_the_tables_of_claims_are_read_from_the_same_folder(tmp_path):
    table = published_table(REAL, REAL.claim("throughput-flat-over-max-num-seqs"))
    assert table.loc[0, ["gpu", "max_num_seqs", "throughput_tok_s"]].tolist() == ["H200", 1, 11939]
    found = read(tmp_path, CLAIM | {"table": "rates.csv"})
    with pytest.raises(InputError, match=r"rates.csv: No such file"):
        published_table(found, found.claim("one"))
    (tmp_path / "rates.csv").write_text("")
    with pytest.raises(InputError, match=r"rates.csv: not a CSV table"):
        published_table(found, found.claim("one"))


@pytest.mark.parametrize(
    ("claims", "message"),
    [
        ([CLAIM | {"label": "measured"}], r"claims.yaml: 0.label: Input should be 'published'"),
        ([CLAIM | {"quantities": []}], r"0.quantities: Tuple should have at least 1 item"),
        ([CLAIM | {"quantities": [{"name": "a", "unit": "s"}]}], "a: needs one of value, values, min, max"),
        ([CLAIM, CLAIM], "two claims have the id 'one'"),
    ],
)
def test_claims_that_are_not_valid_are_refused(tmp_path, claims, message):
    with pytest.raises(PublishedError, match=message):
        _ = read(tmp_path, *claims).claims


def test_a_missing_file_and_an_unknown_claim_are_refused(tmp_path):
    with pytest.raises(PublishedError, match=r"claims.yaml: No such file"):
        _ = Published(tmp_path).claims
    with pytest.raises(PublishedError, match=r"claims.yaml: no claim 'b200-over-l4'"):
        REAL.claim("b200-over-l4")
