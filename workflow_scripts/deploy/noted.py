"""YAML files in which a value may have a comment that says where it comes from."""

import io
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap, CommentedSeq
from ruamel.yaml.scalarstring import LiteralScalarString


class Noted(NamedTuple):
    """A value and the comment behind it."""

    value: Any
    why: str


def noted_yaml(*documents: Mapping[str, Any], head: Sequence[str] = ()) -> str:
    """Plain values as YAML, with the comment of each `Noted` behind its value and the lines of `head` as comments.

    >>> print(noted_yaml({"max-num-seqs": Noted(16, "cell a/b")}, head=["made from a study"]), end="")
    # made from a study
    max-num-seqs: 16 # cell a/b
    """
    writer = YAML()
    writer.width = 4096  # a comment belongs to its line
    writer.indent(mapping=2, sequence=4, offset=2)
    writer.explicit_start = len(documents) > 1
    out = io.StringIO()
    out.writelines(f"# {line}".rstrip() + "\n" for line in head)
    writer.dump_all([_commented(document) for document in documents], out)
    return out.getvalue()


def _commented(value: Any) -> Any:
    if isinstance(value, Noted):
        return _commented(value.value)
    if isinstance(value, str):
        return LiteralScalarString(value) if "\n" in value else value
    if isinstance(value, list):
        sequence = CommentedSeq(map(_commented, value))
        for position, each in enumerate(value):
            if isinstance(each, Noted):
                sequence.yaml_add_eol_comment(each.why, position, column=0)
        return sequence
    if isinstance(value, Mapping):
        mapping = CommentedMap((name, _commented(each)) for name, each in value.items())
        for name, each in value.items():
            if isinstance(each, Noted):
                mapping.yaml_add_eol_comment(each.why, name, column=0)
        return mapping
    return value
