"""Published claims and tables: how they are read, and which are refused."""

import pytest
import yaml

from workflow_scripts.catalog.gpus_and_models import CONFIG
from workflow_scripts.catalog.published import Claim, Published, PublishedError
from workflow_scripts.common.faults import InputError

REAL = Published(CONFIG / "published")
CLAIM = {
    "id": "one",
    "source": "lab",
    "text": "It is so.",
    "section": "devices",
    "tested_by": "demo: all sweeps",
    "quantities": [{"name": "rate", "unit": "tokens/s", "value": 5}],
}


def read(folder, *claims):
    (folder / "claims.yaml").write_text(yaml.safe_dump(list(claims)))
    return Published(folder)


def test_numbers_of_a_claim_by_name():
    assert REAL.claim("h200-over-l40s").value("throughput_ratio") == 2.95
    half = Claim.model_validate(CLAIM | {"quantities": [{"name": "rate", "unit": "s", "min": 1}]})
    for name, message in (("speed", "claims.yaml: one: no quantity 'speed'; there are: rate"), ("rate", "needs value")):
        with pytest.raises(PublishedError, match=message):
            half.value(name)


def test_the_tables_of_claims_are_read_from_the_same_folder(tmp_path):
    first = REAL.table(REAL.claim("throughput-flat-over-max-num-seqs"))[0]
    assert first == {"gpu": "H200", "max_num_seqs": 1, "throughput_tok_s": 11939, "approximate": False}
    with pytest.raises(PublishedError, match=r"claims.yaml: block-size-by-length: needs a table"):
        REAL.table(REAL.claim("block-size-by-length"))
    found = read(tmp_path, CLAIM | {"table": "rates.csv"})
    with pytest.raises(InputError, match=r"rates.csv: No such file"):
        found.table(found.claim("one"))


@pytest.mark.parametrize(
    ("claims", "message"),
    [
        ([CLAIM | {"checks": []}], r"claims.yaml: 0.checks: unknown key; allowed: id, source, text"),
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
