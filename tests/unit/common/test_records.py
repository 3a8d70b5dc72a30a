"""What is said about content that is no valid record: where the fault is in the file, and what is allowed there."""

import re
from typing import Annotated, Any, Literal

import pytest
from pydantic import Field

from workflow_scripts.common.faults import InputError
from workflow_scripts.common.records import Record, StrictRecord, validated


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
        ({"shapes": {}, "shape": 1}, ["shape: unknown key; allowed: shapes, styles, frame, notes"]),
        ({"shapes": {"a": None}}, ["shapes.a: must be a mapping of keys to values, not None"]),
        ({"shapes": {"a": {}}}, ["shapes.a: `kind` is missing; allowed: square, circle"]),
        ({"shapes": {"a": {"kind": "line"}}}, ["shapes.a: kind 'line' is unknown; allowed: square, circle"]),
        ({"shapes": {"kind": {"kind": "circle", "r": 1}}}, ["shapes.kind.r: unknown key; allowed: kind, radius"]),
        (
            {"shapes": {"a": {"kind": "square", "side": "2"}, "b": {"kind": "circle", "radius": 0}}},
            [
                "shapes.a.side: Input should be a valid number, not '2'",
                "shapes.b.radius: Input should be greater than 0, not 0",
            ],
        ),
        ({"shapes": {"A": {"kind": "circle"}}}, ["shapes.A: String should match pattern '^[a-z]+$', not 'A'"]),
        ({"shapes": {}, "styles": [{}, {"color": 1}]}, ["styles.1.color: unknown key; allowed: colour"]),
        ({"shapes": {}, "styles": [{"colour": "red"}]}, ["styles.0.colour: a colour begins with #, not 'red'"]),
        (
            {"shapes": {}, "frame": {"color": 1}},
            ["frame.color: unknown key; allowed: colour", "frame: Input should be 'none', not {'color': 1}"],
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
    with pytest.raises(InputError, match=r"^a\.yaml: b\.color: unknown key; allowed: colour$"):
        validated(dict[str, Style], {"b": {"color": 1}}, "a.yaml")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "No such file or directory"),
        ("{", "not JSON: "),
        # Of a file that a program wrote the first fault is enough.
        ('{"a": 1, "b": 2}', "a: unknown key; allowed: colour$"),
    ],
)
def test_a_file_without_a_record_is_named(tmp_path, text, said):
    path = tmp_path / "style.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(InputError, match=f"^{re.escape(str(path))}: {said}"):
        Style.read(path)
