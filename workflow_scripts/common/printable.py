"""Texts of others, such as logs, names of files and records, in a form that a terminal or a comment can show."""

from io import TextIOWrapper


def printable(text: str) -> str:
    """The text with its control characters spelled out, which a terminal would execute.

    >>> print(printable("a\\x1b[2J\\nb"))
    a\\x1b[2J\\nb
    """
    if text.isprintable():
        return text
    return "".join(character if character.isprintable() else repr(character)[1:-1] for character in text)


def printable_lines(text: str) -> str:
    """The same for a text of several lines."""
    return "\n".join(map(printable, text.split("\n")))


class PrintableStream(TextIOWrapper):
    """A stream in place of `of` that writes printable lines; both spell out what their encoding lacks."""

    def __init__(self, raw: TextIOWrapper) -> None:
        raw.reconfigure(errors="backslashreplace")
        super().__init__(raw.buffer, raw.encoding, raw.errors, line_buffering=raw.line_buffering, write_through=True)

    def write(self, text: str) -> int:
        super().write(printable_lines(text))
        return len(text)
