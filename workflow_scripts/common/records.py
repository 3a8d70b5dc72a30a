"""Records: the base class of all models of files and settings, how files are read, and messages about invalid ones."""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, NotRequired, Self, TypeVar, Union, get_args, get_origin, get_type_hints

import yaml
from pydantic import BaseModel, ConfigDict, Field, GetPydanticSchema, TypeAdapter, ValidationError, with_config
from typing_extensions import TypedDict  # that of `typing` does not do for pydantic before Python 3.12
from yaml.composer import Composer

from workflow_scripts.common.faults import InputError
from workflow_scripts.common.files import bounded, parse_json, read_bytes, read_text, write_text
from workflow_scripts.common.wording import allowed_names

Kind = TypeVar("Kind")
# A mapping file of 1,500 imported runs has 200 kB and 20,000 values; no file that people write is larger, or as deep.
MOST_YAML_BYTES, MOST_YAML_NODES, MOST_YAML_LEVELS, MOST_YAML_DIGITS = 2**18, 100_000, 50, 300


def mapping_of(fields: Mapping[str, Any], required: Mapping[str, Any] | None = None, **config: Any) -> Any:
    """The type of a mapping with these fields, each of which may be missing or null, and with `required` ones."""
    known = {name: NotRequired[kind | None] for name, kind in fields.items()} | dict(required or {})
    return with_config(ConfigDict(**config))(TypedDict("Mapping", known))  # type: ignore[operator, typeddict-item]


# For a typed dict in a record: it is written as it was read, with more or fewer fields, as other versions record them.
AsRecorded = GetPydanticSchema(
    lambda kind, handler: handler.generate_schema(mapping_of(get_type_hints(kind, include_extras=True), extra="allow"))
)


class Record(BaseModel):
    """A record of known fields that never changes."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    @classmethod
    def read(cls, path: Path) -> Self:
        """The record that `write` wrote. Raises InputError, for the first of several faults, if it cannot be read."""
        try:
            return cls.of_json(read_bytes(path), str(path))
        except OSError as e:
            raise InputError(f"{path}: {e.strerror}") from None

    @classmethod
    def of_json(cls, content: bytes, where: str) -> Self:
        """The record in a JSON text. Raises InputError, beginning with `where`, for the first of several faults."""
        try:
            return validated(cls, parse_json(content, where), where)
        except InputError as e:
            raise InputError(str(e).partition("\n")[0]) from None

    def write(self, path: Path, indent: int | None = 2) -> None:
        write_text(path, self.model_dump_json(indent=indent) + "\n")


def added(default: Any, description: str | None = None, **limits: Any) -> Any:
    """A field that was added later: it is not written while it has its default, so that the records of before, and
    their hashes, stay as they were."""
    return Field(default, description=description, exclude_if=lambda value: value == default, **limits)


class StrictRecord(Record):
    """A record that people write: a text or a boolean is never a number, even if it could be read as one."""

    model_config = ConfigDict(strict=True, allow_inf_nan=False)


def validated(
    kind: type[Kind],
    content: Any,
    where: str,
    fault: type[InputError] = InputError,
    words: Mapping[str, str] | None = None,
) -> Kind:
    """The content of a file, plain values, as a record or as a collection of records. `where`: the file, and the place
    in it if it is not the whole. `words`: see `faults`. Raises `fault` if the content is not valid; one line for each
    fault says where, what, and which values are allowed."""
    try:
        result: Kind = _adapter(kind).validate_python(content)  # type: ignore[arg-type]  # a type is hashable
    except ValidationError as e:
        lines = (": ".join(filter(None, (where, *parts))) for parts in faults(e, kind, words or {}))
        raise fault("\n".join(lines)) from None
    return result


class _Loader(Composer, yaml.CSafeLoader):
    """YAML that refuses duplicate keys in a mapping, of which YAML itself would silently take the last one, and short
    texts that stand for large contents. libyaml only scans the text: its composer crashes at a deep one."""

    def __init__(self, text: str) -> None:
        yaml.CSafeLoader.__init__(self, text)
        Composer.__init__(self)
        self._level = 0

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.tag != "tag:yaml.org,2002:merge":
                if key.value in seen:
                    raise yaml.MarkedYAMLError(problem=f"key {key.value!r} occurs twice", problem_mark=key.start_mark)
                seen.add(key.value)
        return node

    def get_single_node(self) -> yaml.Node | None:
        node = super().get_single_node()
        if node is not None:
            nodes, levels = _expanded(node, {})
            if nodes > MOST_YAML_NODES or levels > MOST_YAML_LEVELS:
                most = f"{MOST_YAML_NODES:,} values and {MOST_YAML_LEVELS} levels"
                raise yaml.YAMLError(f"too large with its aliases written out; allowed: {most}")
        return node

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        self._level += 1
        if self._level > MOST_YAML_LEVELS:
            raise yaml.YAMLError(f"more than {MOST_YAML_LEVELS} levels")
        node: yaml.Node | None = super().compose_node(parent, index)
        self._level -= 1
        return node

    def construct_number(self, node: yaml.ScalarNode) -> float:
        try:
            if len(node.value) > MOST_YAML_DIGITS:
                raise ValueError("too large a number")
            number = (self.construct_yaml_int if node.tag.endswith("int") else self.construct_yaml_float)(node)
            return bounded(number) if math.isfinite(number) else number
        except ValueError as e:
            raise yaml.MarkedYAMLError(problem=str(e), problem_mark=node.start_mark) from None


for _kind in ("int", "float"):
    _Loader.add_constructor(f"tag:yaml.org,2002:{_kind}", _Loader.construct_number)


def _expanded(node: yaml.Node, known: dict[int, tuple[float, float]]) -> tuple[float, float]:
    """How many nodes and levels a node has if every alias is written out; `known` holds them by the node's identity."""
    if id(node) not in known:
        known[id(node)] = (math.inf, math.inf)  # for a node inside itself
        of_mapping = isinstance(node, yaml.MappingNode)
        inner = itertools.chain(*node.value) if of_mapping else () if isinstance(node, yaml.ScalarNode) else node.value
        nodes, levels = zip((1, 0), *(_expanded(each, known) for each in inner), strict=True)
        known[id(node)] = (sum(nodes), 1 + max(levels))
    return known[id(node)]


def read_yaml(path: Path, fault: type[InputError] = InputError) -> Any:
    """The content of a YAML file. Raises `fault` if the file cannot be opened, is not YAML, has a key twice, or is too
    large."""
    try:
        return _Loader(read_text(path, MOST_YAML_BYTES)).get_single_data()
    except OSError as e:
        raise fault(f"{path}: {e.strerror}") from None
    except InputError as e:
        raise fault(str(e)) from None
    except Exception as e:  # PyYAML raises errors of many kinds for a value that does not fit its tag
        words = " ".join(str(e).split()).replace('in "<unicode string>", line', "in line")
        tab = "; a tab is no indentation: use spaces" if "cannot start any token" in words else ""
        raise fault(f"{path}: not readable as YAML: {words}{tab}") from None


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def faults(error: ValidationError, kind: Any, words: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Where each fault is, and what is wrong there and allowed instead. `words`: our own messages, by pydantic's type
    of fault, or by the pattern that a text does not match.

    >>> class Size(StrictRecord):
    ...     width: int
    >>> try:
    ...     Size.model_validate({"width": "2", "depth": 1})
    ... except ValidationError as e:
    ...     list(faults(e, Size, {}))
    [('width', "Input should be a valid integer, not '2'"), ('depth', 'unknown key; allowed: width')]
    """
    for fault in error.errors(include_url=False):
        place, holder, here = _followed(kind, fault["loc"])
        yield ".".join(place), _message(fault, holder, here, words)


def _message(fault: Any, holder: Any, here: Any, words: Mapping[str, str]) -> str:
    kind, context, given = fault["type"], fault.get("ctx", {}), repr(fault["input"])
    own = words.get(kind) or words.get(context.get("pattern"))
    if kind == "extra_forbidden":
        return f"{own or 'unknown key'}; {allowed_names(fault['loc'][-1], holder.model_fields)}"
    if kind == "union_tag_invalid":
        return f"kind {context['tag']!r} is unknown; {allowed_names(context['tag'], _tags(here))}"
    if kind == "union_tag_not_found":
        return f"`kind` is missing; allowed: {', '.join(_tags(here))}"
    if kind in ("dict_type", "model_type", "model_attributes_type"):
        return own or f"must be a mapping of keys to values, not {given}"
    text: str = own or fault["msg"].removeprefix("Value error, ")
    return text if kind in ("missing", "value_error", "too_short") or len(given) >= 80 else f"{text}, not {given}"


def _followed(kind: Any, loc: Sequence[int | str]) -> tuple[list[str], Any, Any]:
    """A place as it is written in the file, what holds its last part, and what should be there. Pydantic adds which
    member of a union it tried, and marks a fault in a key itself; the file has neither."""
    place: list[str] = []
    holder = None
    for part in loc:
        holder, *others = _members(kind)
        if others:
            kind = next((member for member in (holder, *others) if part in _names(member)), None)
            continue
        kind = _held(holder, part)
        if part != "[key]":
            place.append(str(part))
    return place, holder, kind


def _members(kind: Any) -> list[Any]:
    if get_origin(kind) is Annotated:
        return _members(get_args(kind)[0])
    if get_origin(kind) in (Union, UnionType):
        return [member for each in get_args(kind) if each is not NoneType for member in _members(each)]
    return [kind]


def _held(kind: Any, part: int | str) -> Any:
    """The type of a field of a record, or of an element of a collection; None if it is open."""
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        field = kind.model_fields.get(str(part))
        return field and field.annotation
    kinds = [each for each in get_args(kind) if each is not Ellipsis]
    return kinds[-1] if kinds else None


def _names(member: Any) -> tuple[Any, ...]:
    """What pydantic calls a member of a union: by its `kind` if it has one."""
    if isinstance(member, type) and issubclass(member, BaseModel) and "kind" in member.model_fields:
        return get_args(member.model_fields["kind"].annotation)
    return (getattr(member, "__name__", None),)


def _tags(kind: Any) -> list[str]:
    return [str(name) for member in _members(kind) for name in _names(member)]
