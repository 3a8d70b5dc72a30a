"""Workloads from a file of texts."""

import json
from pathlib import Path

import numpy as np
import pytest

from workflow_scripts.common.faults import InputError
from workflow_scripts.common.files import sha256_of
from workflow_scripts.predict.forecast import lengths_of
from workflow_scripts.prepare.tokenizer import load_vocabulary
from workflow_scripts.workloads.make_requests import make_requests
from workflow_scripts.workloads.request import Vocabulary, WorkloadError
from workflow_scripts.workloads.workload_kinds import PromptsWorkload

FOLDER = Path(__file__).parents[2] / "fixtures" / "prompts"
# A token a byte, as the tokenizer of a model without weights has it.
VOCABULARY = Vocabulary(np.arange(300, 3000), lambda text: list(text.encode()), list)


def prompts(file: Path, **changed) -> PromptsWorkload:
    values = {"kind": "prompts", "num_prompts": 3, "file": file, "sha256": sha256_of(file), "output_tokens": 16}
    return PromptsWorkload(**{**values, **changed})


def texts(requests):
    return [(bytes(r.prompt_token_ids).decode(), r.output_tokens) for r in requests]


def test_json_lines_may_say_their_own_output_length_and_other_lines_are_texts():
    requests, stream = make_requests(prompts(FOLDER / "questions.jsonl"), VOCABULARY, 3)
    assert texts(requests) == [
        ("What does a KV cache hold?", 12),
        ("Why is a block of sixteen tokens a common choice?", 16),
        ("Wie viele Blöcke braucht eine Anfrage von hundert Tokens?", 5),
    ]
    assert stream.details["texts"] == 3
    requests, _ = make_requests(prompts(FOLDER / "questions.txt"), VOCABULARY, 3)
    assert texts(requests)[2] == ('{"this line": "is text too"}', 16)
    with pytest.raises(WorkloadError, match="4 requests are needed"):
        make_requests(prompts(FOLDER / "questions.txt"), VOCABULARY, 4)


def test_a_chat_goes_through_the_models_template(model_dir):
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model_dir, local_files_only=True)
    requests, _ = make_requests(prompts(FOLDER / "chats.jsonl", chat=True), load_vocabulary(model_dir, 4096), 3)
    assert [tokenizer.decode(r.prompt_token_ids) for r in requests] == [
        "system: Answer in one sentence.\nuser: What is a page table?\nassistant: ",
        "user: Why does a batch make decoding faster?\nassistant: ",
        "user: Was ist ein Präfix?\nassistant: Der Anfang eines Textes.\nuser: Und ein Suffix?\nassistant: ",
    ]
    assert requests[1].messages == [{"role": "user", "content": "Why does a batch make decoding faster?"}]
    assert [r.output_tokens for r in requests] == [6, 16, 16]
    assert requests[0].as_line("0")["messages"] == requests[0].messages
    # A prediction needs no tokenizer.
    assert len(lengths_of(prompts(FOLDER / "chats.jsonl", chat=True), 3)[0]) == 3


def test_a_model_without_a_template_is_told(model_dir, tmp_path):
    for name in ("config.json", "tokenizer.json"):
        (tmp_path / name).write_text((model_dir / name).read_text())
    settings = json.loads((model_dir / "tokenizer_config.json").read_text())
    del settings["chat_template"]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    vocabulary = load_vocabulary(tmp_path, 4096)
    with pytest.raises(InputError, match="no chat template"):
        make_requests(prompts(FOLDER / "chats.jsonl", chat=True), vocabulary, 3)


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.jsonl", '{"prompt": "x"}\n{"text": "y"}', ":2: a line has either a prompt or messages"),
        ("a.jsonl", '{"prompt": "x", "messages": [{"role": "user", "content": "y"}]}', ":1: a line has either"),
        ("a.jsonl", '{"messages": [{"role": "me", "content": "x"}]}', ":1: messages.0.role: "),
        ("a.jsonl", '{"messages": [{"role": "user", "content": "x"}]}', ": it has messages; set chat: true"),
        ("a.jsonl", "[1]", ":1: not a JSON object with a `prompt` or `messages`"),
        ("a.jsonl", "text", ":1: not JSON"),
        ("a.txt", "\n \n", "there is no text in it"),
        ("a.txt", "\udcff\udcfe", "not UTF-8"),
    ],
)
def test_a_file_without_texts_is_refused(tmp_path, name, content, words):
    file = tmp_path / name
    file.write_text(content, errors="surrogateescape")
    with pytest.raises(WorkloadError, match=words) as error:
        make_requests(prompts(file), VOCABULARY, 1)
    assert str(file) in str(error.value)


@pytest.mark.parametrize(("name", "form"), [("a.txt", "{}"), ("a.jsonl", '{{"prompt": "{}"}}')])
def test_only_a_line_break_ends_a_text(tmp_path, name, form):
    (tmp_path / name).write_text("\n".join(map(form.format, ["a\u2028b", "c"])), encoding="utf-8-sig")
    requests, _ = make_requests(prompts(tmp_path / name), VOCABULARY, 2)
    assert [text for text, _ in texts(requests)] == ["a\u2028b", "c"]
