"""Workloads from a file of texts: prompts, chats, and conversations in the format of ShareGPT."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from workflow_scripts.common.faults import InputError
from workflow_scripts.common.files import sha256_of
from workflow_scripts.predict.predictions import lengths_of
from workflow_scripts.prepare.tokenizer import load_vocabulary
from workflow_scripts.workloads.make_requests import make_requests, make_warmup
from workflow_scripts.workloads.request import Vocabulary, WorkloadError
from workflow_scripts.workloads.workload_kinds import (
    LengthDistribution,
    PromptsWorkload,
    ShareGptWorkload,
    SyntheticWorkload,
)

FIXTURES = Path(__file__).parents[2] / "fixtures"
FOLDER = FIXTURES / "prompts"
# Invented conversations in the format of the real file.
CONVERSATIONS = FIXTURES / "sharegpt" / "conversations.json"
# A token a byte, as the tokenizer of a model without weights has it.
VOCABULARY = Vocabulary(np.arange(300, 3000), lambda text: list(text.encode()), list)


def prompts(file: Path, **changed) -> PromptsWorkload:
    values = {"kind": "prompts", "num_prompts": 3, "file": file, "sha256": sha256_of(file), "output_tokens": 16}
    return PromptsWorkload(**{**values, **changed})


def texts(requests):
    return [(bytes(r.prompt_token_ids).decode(), r.output_tokens) for r in requests]


def test_json_lines_may_say_their_own_output_length_and_other_lines_are_texts():
    requests = make_requests(prompts(FOLDER / "questions.jsonl"), VOCABULARY, 3)
    assert texts(requests) == [
        ("What does a KV cache hold?", 12),
        ("Why is a block of sixteen tokens a common choice?", 16),
        ("Wie viele Blöcke braucht eine Anfrage von hundert Tokens?", 5),
    ]
    requests = make_requests(prompts(FOLDER / "questions.txt"), VOCABULARY, 3)
    assert texts(requests)[2] == ('{"this line": "is text too"}', 16)
    with pytest.raises(WorkloadError, match="4 requests are needed"):
        make_requests(prompts(FOLDER / "questions.txt"), VOCABULARY, 4)


def test_samples_repeat_each_text_in_a_row_and_share_all_of_it():
    spec = prompts(FOLDER / "questions.jsonl", samples=2)
    once = make_requests(prompts(FOLDER / "questions.jsonl"), VOCABULARY, 3)
    requests = make_requests(spec, VOCABULARY, 5)
    assert texts(requests) == [text for text in texts(once) for _ in range(2)][:5]
    assert [(r.prefix_id, r.prefix_tokens == len(r.prompt_token_ids)) for r in requests] == [
        (i // 2, True) for i in range(5)
    ]
    assert [spec.shared_text(i).id for i in range(5)] == [0, 0, 1, 1, 2]
    assert once[0].prefix_id is None
    with pytest.raises(WorkloadError, match="7 requests are needed"):
        make_requests(spec, VOCABULARY, 7)


def test_a_chat_goes_through_the_models_template(model_dir):
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model_dir, local_files_only=True)
    requests = make_requests(prompts(FOLDER / "chats.jsonl", chat=True), load_vocabulary(model_dir, 4096), 3)
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
    folder = shutil.copytree(model_dir, tmp_path / "model")
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    del settings["chat_template"]
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    with pytest.raises(InputError, match="no chat template"):
        make_requests(prompts(FOLDER / "chats.jsonl", chat=True), load_vocabulary(folder, 4096), 3)


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.jsonl", '{"prompt": "x"}\n{"text": "y"}', ":2: a line has either a prompt or messages"),
        ("a.jsonl", '{"prompt": "x", "messages": [{"role": "user", "content": "y"}]}', ":1: a line has either"),
        ("a.jsonl", '{"messages": [{"role": "me", "content": "x"}]}', ":1: messages.0.role: "),
        ("a.jsonl", '{"messages": [{"role": "user", "content": "x"}]}', ": it has messages; set chat: true"),
        ("a.jsonl", "[1]", ":1: not a JSON object with a `prompt` or `messages`"),
        ("a.jsonl", "text", ":1: not JSON"),
        ("a.txt", "\n \n", ": there is no text in it"),
        ("a.txt", "\udcff\udcfe", ": not UTF-8"),
    ],
)
def test_a_file_without_texts_is_refused(tmp_path, name, content, words):
    file = tmp_path / name
    file.write_text(content, errors="surrogateescape")
    with pytest.raises(WorkloadError, match=f"^{file}{words}"):
        make_requests(prompts(file), VOCABULARY, 1)


@pytest.mark.parametrize(("name", "form"), [("a.txt", "{}"), ("a.jsonl", '{{"prompt": "{}"}}')])
def test_only_a_line_break_ends_a_text(tmp_path, name, form):
    (tmp_path / name).write_text("\n".join(map(form.format, ["a\u2028b", "c"])), encoding="utf-8-sig")
    requests = make_requests(prompts(tmp_path / name), VOCABULARY, 2)
    assert [text for text, _ in texts(requests)] == ["a\u2028b", "c"]


def sharegpt(file: Path = CONVERSATIONS, **changed) -> ShareGptWorkload:
    lengths = LengthDistribution(median=20, sigma=0.5, minimum=8, maximum=64)
    fallback = SyntheticWorkload(kind="synthetic", num_prompts=1, prompt_tokens=lengths, output_tokens=lengths)
    values = {"kind": "sharegpt", "num_prompts": 4, "seed": 3, "file": file, "sha256": sha256_of(CONVERSATIONS)}
    return ShareGptWorkload(**{**values, "fallback": fallback, **changed})


@pytest.fixture(scope="module")
def vocabulary(model_dir):
    return load_vocabulary(model_dir, 4096)


@pytest.mark.parametrize(("seed", "output_tokens"), [(0, None), (1, None), (42, None), (5, 3), (6, 1020)])
def test_the_selection_is_that_of_vllms_own_benchmark(model_dir, vocabulary, seed, output_tokens):
    datasets = pytest.importorskip("vllm.benchmarks.datasets", reason="vLLM is not installed")
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model_dir, local_files_only=True)
    dataset = datasets.ShareGPTDataset(dataset_path=str(CONVERSATIONS), random_seed=seed)
    theirs = dataset.sample(tokenizer, 1000, no_oversample=True, output_len=output_tokens)
    assert len(theirs) >= 10
    expected = [(tokenizer(sample.prompt).input_ids, sample.expected_output_len) for sample in theirs]
    spec = sharegpt(seed=seed, output_tokens=output_tokens)
    requests = make_requests(spec, vocabulary, len(theirs))
    assert [(r.prompt_token_ids, r.output_tokens) for r in requests] == expected
    with pytest.raises(WorkloadError, match=f"{len(theirs) + 1} requests are needed"):
        make_requests(spec, vocabulary, len(theirs) + 1)


def test_the_warmup_takes_none_of_the_texts(vocabulary):
    requests = make_requests(sharegpt(), vocabulary, 15)
    warmup = make_warmup(sharegpt(), vocabulary, requests)
    assert [r.total_tokens for r in warmup] == [r.total_tokens for r in requests]
    of_requests, others = ({tuple(r.prompt_token_ids[:16]) for r in some} for some in (requests, warmup))
    assert of_requests.isdisjoint(others)


def test_too_small_a_file_another_one_and_none_for_a_chat_are_refused(vocabulary, tmp_path):
    with pytest.raises(WorkloadError, match=r"99 requests .*conversations.json gives 15"):
        make_requests(sharegpt(), vocabulary, 99)
    other = tmp_path / "other.json"
    other.write_text("[]")
    with pytest.raises(WorkloadError, match=rf"{sha256_of(other)}.*{sha256_of(CONVERSATIONS)}"):
        make_requests(sharegpt(other), vocabulary, 1)
    # Nothing stands in for the texts of a chat.
    with pytest.raises(WorkloadError, match="there is no such file"):
        make_requests(sharegpt(tmp_path / "none.json", chat=True), vocabulary, 1)


def test_a_fallback_is_needed_only_without_the_file(vocabulary, tmp_path):
    assert make_requests(sharegpt(fallback=None), vocabulary, 5) == make_requests(sharegpt(), vocabulary, 5)
    with pytest.raises(WorkloadError, match="there is no such file"):
        make_requests(sharegpt(tmp_path / "none.json", fallback=None), vocabulary, 1)


NO_TEXT = '[{"conversations": [{"value": "said"}, {"value": null}]}]'


@pytest.mark.parametrize("content", ["no JSON", "[1]", '[{"conversations": [{}, {}]}]', "[" * 100_000, NO_TEXT])
def test_a_file_of_another_format_is_refused(vocabulary, tmp_path, content):
    file = tmp_path / "file.json"
    file.write_text(content)
    with pytest.raises(WorkloadError, match=f"{file}: not a ShareGPT file"):
        make_requests(sharegpt(file, sha256=sha256_of(file)), vocabulary, 1)


@pytest.mark.parametrize("output_tokens", [None, 17])
def test_without_the_file_the_fallback_stands_in(vocabulary, tmp_path, output_tokens):
    spec = sharegpt(tmp_path / "missing.json", output_tokens=output_tokens)
    requests = make_requests(spec, vocabulary, 5)
    drawn = make_requests(spec.fallback.model_copy(update={"seed": spec.seed}), vocabulary, 5)
    assert requests == [replace(one, output_tokens=output_tokens or one.output_tokens) for one in drawn]
