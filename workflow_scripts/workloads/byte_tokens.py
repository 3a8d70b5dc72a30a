"""The vocabulary of a model that is only a config: each byte of a text is one token."""

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from workflow_scripts.common.faults import InputError
from workflow_scripts.physics.model_facts import vocabulary_and_context
from workflow_scripts.workloads.request import Messages, Vocabulary

# Roles and contents as plain text: the vocabulary need not have special tokens for them.
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ message['role'] + ': ' + message['content'] + '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}"
)


def special_ids(config: Mapping[str, Any]) -> dict[str, list[int]]:
    """The ids of a model's config that begin a text, end it and fill it up."""
    named = {role: config.get(f"{role}_token_id") for role in ("bos", "eos", "pad")}
    listed = {role: ids if isinstance(ids, list) else [ids] for role, ids in named.items()}
    return {role: [i for i in ids if i is not None] for role, ids in listed.items()}


def plain_ids(vocab_size: int, special: Collection[int]) -> list[int]:
    """The other ids, ascending. Raises InputError if the vocabulary has no room for bytes and special tokens."""
    if max(special, default=0) >= vocab_size or vocab_size < 256 + len(special):
        raise InputError(
            f"a vocabulary of {vocab_size} tokens has no room for 256 bytes and special tokens at {sorted(special)}"
        )
    return [i for i in range(vocab_size) if i not in special]


def vocabulary_of_bytes(config: Mapping[str, Any]) -> Vocabulary:
    """What workloads need of the tokenizer that `prepare-model` writes for a config: the same ids of text, and as many
    tokens. Raises InputError as `plain_ids` does."""
    special = {i for ids in special_ids(config).values() for i in ids}
    ids = plain_ids(vocabulary_and_context(config)[0], special)

    def encode(text: str) -> list[int]:
        return [ids[byte] for byte in text.encode()]

    def encode_chat(messages: Messages) -> list[int]:
        return encode("".join(f"{one['role']}: {one['content']}\n" for one in messages) + "assistant: ")

    return Vocabulary(np.array(ids, dtype=np.int64), encode, encode_chat)
