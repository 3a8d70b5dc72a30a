"""Whether a cell of one study may be compared with the same cell of another one, and if not, why.

Two cells may differ in what a comparison examines: host, device, processor, versions, and the settings that an engine
chooses because of these. They may not differ in what the study specifies: weights, requests, protocol.
"""

from collections.abc import Iterator

from workflow_scripts.questions.compare.digest import DigestCell
from workflow_scripts.tables.differences import differences, value_text
from workflow_scripts.tables.measurements import SIMULATED

# Maximum number of differing weights or requests that a sentence names.
MOST_NAMED = 3


def why_not(a: DigestCell, b: DigestCell) -> list[str]:
    """Every reason not to compare two cells, or only their outcomes if these differ; empty if they may be compared."""
    reasons = _reasons(a, b) if a.outcome == b.outcome else (_source(a, b), _content(a, b))
    return [why for why in reasons if why]


def _reasons(a: DigestCell, b: DigestCell) -> Iterator[str | None]:
    sides = (("A", a), ("B", b))
    if undefined := [name for name, of in sides if not of.comparable]:
        yield f"in {' and '.join(undefined)} it was measured with another definition than the study's"
    yield _source(a, b)
    yield _unlike("protocol", "it was measured by protocol {} in A and {} in B", a, b)
    yield _content(a, b)
    yield _unlike("dtype", "it was computed in {} in A and in {} in B", a, b)
    kinds = (("lock_sha256", "locks"), ("processor", "processors"))
    several = [(name, words) for key, words in kinds for name, of in sides if len(of.environment.get(key, [])) > 1]
    if several:
        yield "in {} its starts were measured with several {}".format(*several[0])
    if a.began is not None and (a.began, a.environment.get("host")) == (b.began, b.environment.get("host")):
        yield "A and B hold the same measurement of it"


def _source(a: DigestCell, b: DigestCell) -> str | None:
    if a.source != b.source:
        return f"its numbers are {a.source} in A and {b.source} in B"
    return "its numbers are simulated and say nothing about a GPU" if a.source == SIMULATED else None


def _unlike(name: str, words: str, *cells: DigestCell) -> str | None:
    values_a, values_b = (", ".join(of.environment.get(name, ["an unknown one"])) for of in cells)
    return words.format(values_a, values_b) if values_a != values_b else None


def _content(a: DigestCell, b: DigestCell) -> str | None:
    clauses = [
        f"{d.path} is {value_text(d.a)} in A and {value_text(d.b)} in B" for d in differences(a.content, b.content)
    ]
    more = [f"and {len(clauses) - MOST_NAMED} more"] if len(clauses) > MOST_NAMED else []
    return f"weights or requests differ: {'; '.join(clauses[:MOST_NAMED] + more)}" if clauses else None
