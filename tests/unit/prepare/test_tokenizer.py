import shutil
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workflow_scripts.catalog.gpus_and_models import load_models
from workflow_scripts.common.faults import InputError
from workflow_scripts.common.files import read_json
from workflow_scripts.physics.model_facts import read_model_facts
from workflow_scripts.prepare.tokenizer import build_tokenizer, load_vocabulary, write_tokenizer
from workflow_scripts.study.study import as_list
from workflow_scripts.workloads.byte_tokens import vocabulary_of_bytes


@st.composite
def vocabularies(draw):
    special = {i: f"<{i}>" for i in draw(st.sets(st.integers(0, 700), max_size=6))}
    size = draw(st.integers(max(256 + len(special), max(special, default=0) + 1), 1000))
    return size, special


@given(vocabularies())
@settings(max_examples=30)
def test_every_id_of_the_vocabulary_is_one_token_that_decodes(vocabulary):
    size, special = vocabulary
    tokenizer = build_tokenizer(size, special)
    assert sorted(tokenizer.get_vocab().values()) == list(range(size))
    decoded = [tokenizer.decode([i], skip_special_tokens=False) for i in range(size)]
    assert all(decoded)
    assert tokenizer.decode(sorted(special), skip_special_tokens=True) == ""


def test_marks_of_reasoning_are_one_token_each_wherever_there_is_room():
    tokenizer = build_tokenizer(300, {299: "</s>"})
    assert tokenizer.encode("a<think>b</think>").ids == [64, 297, 65, 298]
    assert tokenizer.decode([297, 65, 298], skip_special_tokens=True) == "<think>b</think>"
    assert "<think>" not in build_tokenizer(256, {}).get_vocab()


# Each is one token.
MARKS = ("<s>", "</s>", "<think>", "</think>")


@given(st.text().filter(lambda text: not any(mark in text for mark in MARKS)))
def test_any_text_is_encoded_a_byte_a_token_and_comes_back(text):
    tokenizer = build_tokenizer(400, {0: "<s>", 1: "</s>"})
    ids = tokenizer.encode(text).ids
    assert len(ids) == len(text.encode())
    assert tokenizer.decode(ids) == text


@pytest.mark.parametrize(("size", "special"), [(255, {}), (257, {0: "<s>", 1: "</s>"}), (300, {300: "<s>"})])
def test_a_vocabulary_without_room_is_refused(size, special):
    with pytest.raises(InputError, match=f"a vocabulary of {size} tokens has no room"):
        build_tokenizer(size, special)


@pytest.mark.parametrize("model", load_models().values(), ids=lambda model: model.name)
def test_special_tokens_lie_where_each_catalogued_model_expects_them(model, tmp_path):
    from transformers import AutoTokenizer

    config = read_json(model.config)
    shutil.copy(model.config, tmp_path)
    write_tokenizer(tmp_path, config)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path, local_files_only=True)
    bos, ends, pad = config.get("bos_token_id"), as_list(config["eos_token_id"]), config.get("pad_token_id")
    vocab = read_model_facts(model.config).vocab
    assert (len(tokenizer), tokenizer.bos_token_id, tokenizer.eos_token_id) == (vocab, bos, ends[0])
    assert pad in (None, tokenizer.pad_token_id)
    text_ids = load_vocabulary(tmp_path, vocab).text_ids
    assert {*text_ids.tolist()} == {*range(vocab)} - {*ends, bos, pad}
    assert vocabulary_of_bytes(config).text_ids.tolist() == text_ids.tolist()


def test_random_prompts_need_no_torch(model_dir):
    code = (
        "import sys; from pathlib import Path; from workflow_scripts.prepare.tokenizer import load_vocabulary;"
        "load_vocabulary(Path(sys.argv[1]), 4096); sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code, str(model_dir)]).returncode == 0


def test_a_folder_without_tokenizer_is_refused_and_encoding_adds_what_the_tokenizer_adds(model_dir, tmp_path):
    assert load_vocabulary(model_dir, 300).text_ids.tolist() == list(range(2, 300))
    with pytest.raises(InputError, match="no tokenizer there"):
        load_vocabulary(tmp_path, 300)
    from tokenizers import Tokenizer, processors

    for name in ("config.json", "tokenizer_config.json"):
        shutil.copy(model_dir / name, tmp_path)
    tokenizer = Tokenizer.from_file(str(model_dir / "tokenizer.json"))
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<|special-0|> $A", special_tokens=[("<|special-0|>", 0)]
    )
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    plain, with_bos = (load_vocabulary(folder, 4096).encode("kettle") for folder in (model_dir, tmp_path))
    assert with_bos == [0, *plain]
