import json
import sys

import pytest

from workflow_scripts.catalog import hub
from workflow_scripts.catalog.any_model import find_model
from workflow_scripts.catalog.gpus_and_models import CatalogError, get_gpu, get_model, load_models
from workflow_scripts.common.faults import InputError
from workflow_scripts.common.files import write_json

COMMIT = "0123456789abcdef0123456789abcdef01234567"
LLAMA = json.loads(get_model("tiny-llama-57m").config.read_text())


def folder_of(tmp_path, **changed):
    folder = tmp_path / "my llama"
    write_json(folder / "config.json", LLAMA | changed)
    return folder


@pytest.mark.parametrize(("own", "dtype"), [("bfloat16", "bfloat16"), (None, "native"), ("float8_e4m3fn", "native")])
def test_a_folder_is_a_model_with_random_weights_that_is_known_by_its_name(tmp_path, own, dtype):
    folder = folder_of(tmp_path, torch_dtype=own)
    model = find_model(str(folder))
    assert (model.name, model.dtype, model.load_format, model.licence) == ("myllama", dtype, "dummy", "not known")
    assert model == get_model("myllama") == find_model(str(folder / "config.json"))
    assert len(load_models()) == len(list(load_models())) == len(set(load_models()))


def test_a_folder_named_like_a_catalogue_entry_does_not_replace_it(tmp_path):
    folder = folder_of(tmp_path).rename(tmp_path / "opt-125m")
    assert find_model(str(folder)).name == "opt-125m-as-given"
    assert get_model("opt-125m").config != folder / "config.json"


@pytest.mark.parametrize(("asked", "revision"), [("org/some.Model", "main"), (f"org/some.Model@{COMMIT}", COMMIT)])
def test_a_repository_gives_its_config(tmp_path, monkeypatch, asked, revision):
    fetched = []

    def fetch(*asked_for):
        fetched.append(asked_for)
        return [folder_of(tmp_path) / "config.json"]

    monkeypatch.setattr(hub, "fetch", fetch)
    model = find_model(asked)
    assert fetched == [("org/some.Model", revision, ("config.json", "hf_quant_config.json"))]
    assert (model.name, model.hub_repo, model.load_format) == ("some.Model", "org/some.Model", "hub")
    assert model.revision == (None if revision == "main" else COMMIT)


def test_without_the_hubs_client_a_repository_is_refused(monkeypatch):
    monkeypatch.delitem(sys.modules, "workflow_scripts.catalog.hub")
    monkeypatch.setitem(sys.modules, "httpx2", None)
    with pytest.raises(InputError, match=r"model 'some.Model': httpx2.* is not installed here"):
        find_model("org/some.Model")


def test_a_misspelt_name_is_told_with_the_one_that_is_meant():
    for find, given, meant in (
        (find_model, "qwen2-7", "qwen2-7b"),
        (find_model, "opt-152m", "opt-125m"),
        (get_gpu, "H200x", "h200"),
        (get_gpu, "H100", "h100-sxm', 'h100-pcie' or 'h100-nvl"),
    ):
        with pytest.raises(CatalogError, match=f"; did you mean '{meant}'"):
            find(given)


@pytest.mark.parametrize(
    ("content", "told"), [(None, "there is no such file"), ("{", "config.json: not JSON"), ("[]", "one JSON object")]
)
def test_a_folder_without_a_readable_config_is_refused(tmp_path, content, told):
    if content is not None:
        (tmp_path / "config.json").write_text(content)
    with pytest.raises(CatalogError, match=told):
        find_model(str(tmp_path))


def test_a_name_or_a_folder_of_the_catalogue_is_its_entry_and_anything_else_is_unknown():
    llama = get_model("tiny-llama-57m")
    assert find_model("tiny-llama-57m") == find_model(str(llama.config.parent)) == llama
    with pytest.raises(CatalogError, match=r"unknown model 'gpt-5'; allowed: a folder"):
        find_model("gpt-5")
