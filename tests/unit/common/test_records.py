"""What is said about content that is no valid record: where the fault is in the file, and what is allowed there."""

import re
from itertools import pairwise
from typing import Annotated, Any, Literal

import pytest
from pydantic import Field

from workflow_scripts.common.faults import InputError
from workflow_scripts.common.records import Record, StrictRecord, read_yaml, validated


class Square(StrictRecord):
    kind: Literal["square"]
    side: float


class Circle(StrictRecord):
    kind: Literal["circle"]
    radius: Annotated[float, Field(gt=0)] | None = None


class Style(Record):
    colour: Annotated[str, Field(pattern="^#")] = "#000"


class Drawing(Record):
    shapes: dict[Annotated[str, Field(pattern="^[a-z]+$")], Annotated[Square | Circle, Field(discriminator="kind")]]
    styles: list[Style] = []
    frame: Style | Literal["none"] = "none"
    notes: dict[str, Any] = {}


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ({}, ["shapes: Field required"]),
        ([], ["must be a mapping of keys to values, not []"]),
        (
            {"shapes": {}, "shape": 1},
            ["shape: unknown key; allowed: shapes, styles, frame, notes; did you mean 'shapes'?"],
        ),
        ({"shapes": {"a": None}}, ["shapes.a: must be a mapping of keys to values, not None"]),
        ({"shapes": {"a": {}}}, ["shapes.a: `kind` is missing; allowed: square, circle"]),
        ({"shapes": {"a": {"kind": "line"}}}, ["shapes.a: kind 'line' is unknown; allowed: square, circle"]),
        ({"shapes": {"kind": {"kind": "circle", "x": 1}}}, ["shapes.kind.x: unknown key; allowed: kind, radius"]),
        (
            {"shapes": {"a": {"kind": "square", "side": "2"}, "b": {"kind": "circle", "radius": 0}}},
            [
                "shapes.a.side: Input should be a valid number, not '2'",
                "shapes.b.radius: Input should be greater than 0, not 0",
            ],
        ),
        ({"shapes": {"A": {"kind": "circle"}}}, ["shapes.A: String should match pattern '^[a-z]+$', not 'A'"]),
        (
            {"shapes": {}, "styles": [{}, {"color": 1}]},
            ["styles.1.color: unknown key; allowed: colour; did you mean 'colour'?"],
        ),
        ({"shapes": {}, "styles": [{"colour": "red"}]}, ["styles.0.colour: a colour begins with #, not 'red'"]),
        (
            {"shapes": {}, "frame": {"color": 1}},
            [
                "frame.color: unknown key; allowed: colour; did you mean 'colour'?",
                "frame: Input should be 'none', not {'color': 1}",
            ],
        ),
    ],
)
def test_a_fault_names_its_place_and_what_is_allowed(content, said):
    with pytest.raises(InputError) as raised:
        validated(Drawing, content, "a.yaml", InputError, {"^#": "a colour begins with #"})
    assert str(raised.value).splitlines() == [f"a.yaml: {line}" for line in said]


def test_a_collection_of_records_is_one_content():
    found = validated(dict[str, Style], {"a": {}, "b": {"colour": "#fff"}}, "a.yaml")
    assert found == {"a": Style(), "b": Style(colour="#fff")}
    with pytest.raises(InputError, match=r"^a\.yaml: b\.color: unknown key; allowed: colour; did you mean 'colour'\?$"):
        validated(dict[str, Style], {"b": {"color": 1}}, "a.yaml")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "No such file or directory"),
        ("{", "not JSON: "),
        # Of a file that a program wrote the first fault is enough.
        ('{"a": 1, "b": 2}', "a: unknown key; allowed: colour"),
    ],
)
def test_a_file_without_a_record_is_named(tmp_path, text, said):
    path = tmp_path / "style.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(InputError, match=f"^{re.escape(str(path))}: {said}"):
        Style.read(path)


LAUGHS = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{name}: &{name} [{', '.join([f'*{before}'] * 9)}]\n" for before, name in pairwise("abcdefghij")
)
CHAIN = "a0: &a0 [x]\n" + "".join(f"a{i}: &a{i} [*a{i - 1}]\n" for i in range(1, 60))
MERGES = "a: &a {x: 1, y: 2}\n" + "".join(
    f"{name}: &{name} {{<<: [{', '.join([f'*{before}'] * 9)}]}}\n" for before, name in pairwise("abcdefghij")
)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (LAUGHS, "too large with its aliases written out"),
        (MERGES, "too large with its aliases written out"),
        (CHAIN, "too large with its aliases written out"),
        ("a: &a [*a]", "too large with its aliases written out"),
        ("a: " + "[" * 60 + "]" * 60, "more than 50 levels"),
        ("a: " + "[" * 2000, "more than 50 levels"),
        ("a: 1.0e+250", "is no number up to"),
        ("a: 1" + "0" * 250, "more than 64 bits"),
        ("# " + "x" * 2**18, "larger than 0.25 MiB"),
        ("a: 0x" + "f" * 5000, "too large a number"),
        ("a: " + "1:" * 50_000 + "1", "too large a number"),
        ("a: 2001-99-99", "month must be in 1..12"),
        ("a: !!int ''", ""),
        ("a: !!bool x", ""),
        ("a: !!timestamp x", ""),
        ("a: !!float x", ""),
        ("a: !!python/object:os.system x", "could not determine a constructor"),
        ("? [a]\n: b", "unhashable"),
        ("\0", "control characters"),
    ],
)
def test_yaml_that_is_not_plain_or_too_large_is_one_fault(tmp_path, text, said):
    (tmp_path / "a.yaml").write_text(text)
    with pytest.raises(InputError, match=rf"a\.yaml: .*{re.escape(said)}") as raised:
        read_yaml(tmp_path / "a.yaml")
    assert len(str(raised.value).splitlines()) == 1


def test_a_few_aliases_are_read(tmp_path):
    (tmp_path / "a.yaml").write_text("a: &a {x: 1}\nb: [*a, {<<: *a, y: 2}]\n")
    assert read_yaml(tmp_path / "a.yaml") == {"a": {"x": 1}, "b": [{"x": 1}, {"x": 1, "y": 2}]}
