"""A byte-level tokenizer for models that are only a config, and the vocabulary of any tokenizer."""

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from workflow_scripts.common.faults import InputError
from workflow_scripts.common.files import write_json, write_text
from workflow_scripts.physics.model_facts import vocabulary_and_context
from workflow_scripts.workloads.byte_tokens import CHAT_TEMPLATE, plain_ids, special_ids
from workflow_scripts.workloads.request import Messages, Vocabulary

# The texts with which most models begin and end their reasoning.
_THINKING = ("<think>", "</think>")


def build_tokenizer(vocab_size: int, special_tokens: Mapping[int, str]) -> Tokenizer:
    """A byte-level BPE tokenizer without merges that has exactly `vocab_size` tokens, the same on every call.

    Special tokens (id -> text) have the given ids, the 256 bytes the lowest other ids. The rest of the vocabulary
    is filler: no text encodes to it, but if a model generates it, it can be decoded. The last two of it mark reasoning.

    >>> tokenizer = build_tokenizer(300, {0: "<s>", 299: "</s>"})
    >>> tokenizer.get_vocab_size()
    300
    >>> tokenizer.encode("ab").ids, tokenizer.decode([65, 66, 280])
    ([65, 66], 'ab<|filler-280|>')

    Raises InputError as `plain_ids` does.
    """
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    plain = plain_ids(vocab_size, special_tokens)
    filler = {i: f"<|filler-{i}|>" for i in plain[len(alphabet) :]}
    thinking = dict(zip([*filler][-len(_THINKING) :], _THINKING, strict=False))
    tokens = {**special_tokens, **dict(zip(plain, alphabet, strict=False)), **filler, **thinking}
    tokenizer = Tokenizer(models.BPE(vocab={token: i for i, token in tokens.items()}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(tokens[i], special=True) for i in sorted(special_tokens)])
    tokenizer.add_tokens([AddedToken(text, special=False) for text in thinking.values()])
    return tokenizer


def write_tokenizer(folder: Path, config: Mapping[str, Any]) -> None:
    """Write `tokenizer.json` and `tokenizer_config.json` for a model's config, with the special tokens at its ids. If
    several tokens end a sequence, the tokenizer uses the first."""
    ids = special_ids(config)
    special_tokens = {i: f"<|special-{i}|>" for role in ids for i in ids[role]}
    # transformers' class for Qwen models looks for its own tokens under this name, regardless of the settings; without
    # it the class would append them to the vocabulary.
    special_tokens |= dict.fromkeys(ids["eos"][:1], "<|endoftext|>")
    size, _ = vocabulary_and_context(config)
    write_text(folder / "tokenizer.json", build_tokenizer(size, special_tokens).to_str())
    write_json(
        folder / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "clean_up_tokenization_spaces": False,
            "chat_template": CHAT_TEMPLATE,
            **{f"{role}_token": special_tokens[some[0]] for role, some in ids.items() if some},
        },
    )


def load_vocabulary(model_dir: Path, vocab_size: int) -> Vocabulary:
    """The vocabulary of a prepared model folder; `vocab_size` is the model's own, which need not be the tokenizer's.
    Raises InputError if the folder has no tokenizer that can be read."""
    from transformers import PreTrainedTokenizerFast  # takes a second to import, so not before arguments are checked

    @cache
    def as_served() -> Any:
        """The tokenizer with which an engine reads texts; its import includes torch, for 4 s."""
        from transformers import AutoTokenizer

        return AutoTokenizer.from_pretrained(model_dir, local_files_only=True)

    try:
        ids_of = PreTrainedTokenizerFast.from_pretrained
        is_whole = (model_dir / "tokenizer.json").exists()
        tokenizer = ids_of(model_dir, local_files_only=True) if is_whole else as_served()
    except (OSError, ValueError):
        fault = f"{model_dir}: no tokenizer there that can be read; `kvsweep prepare-model` writes one"
        raise InputError(fault) from None
    special = set(tokenizer.all_special_ids)
    special |= {i for i, token in tokenizer.added_tokens_decoder.items() if token.special}
    token_ids = {i for i in tokenizer.get_vocab().values() if i < vocab_size}

    def encode(text: str) -> list[int]:
        ids: list[int] = as_served()(text).input_ids
        return ids

    def encode_chat(messages: Messages) -> list[int]:
        if not as_served().chat_template:
            raise InputError(f"{model_dir}: its tokenizer has no chat template, so no workload can be a chat")
        chat = [dict(message) for message in messages]
        ids: list[int] = as_served().apply_chat_template(chat, add_generation_prompt=True, return_dict=False)
        return ids

    return Vocabulary(np.array(sorted(token_ids - special), dtype=np.int64), encode, encode_chat)
