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
    if not isinstance(value, list | Mapping):
        return value
    places = dict(value if isinstance(value, Mapping) else enumerate(value))
    plain = {place: _commented(each) for place, each in places.items()}
    made = CommentedMap(plain) if isinstance(value, Mapping) else CommentedSeq(plain.values())
    for place, each in places.items():
        if isinstance(each, Noted):
            made.yaml_add_eol_comment(each.why, place, column=0)
    return made
