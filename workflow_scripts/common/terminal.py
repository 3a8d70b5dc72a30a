"""Tables and styled lines on a terminal."""

import sys
from collections.abc import Iterable
from typing import Any

from rich.console import Console
from rich.segment import Segment
from rich.text import Text

from workflow_scripts.common.printable import PrintableStream, printable_lines


class Terminal(Console):
    """A console for texts of others: it reads no markup in them, and shows printable lines alone."""

    def __init__(self, **options: Any) -> None:
        # A printable stream would spell out the styles too.
        stream = sys.__stdout__ if isinstance(sys.stdout, PrintableStream) else None
        super().__init__(file=stream, markup=False, emoji=False, highlight=False, **options)

    def render_str(self, text: str, **options: Any) -> Text:
        # Here too, because columns are as wide as these texts.
        return super().render_str(printable_lines(text), **options)

    def render(self, *args: Any, **options: Any) -> Iterable[Segment]:
        for segment in super().render(*args, **options):
            yield segment if segment.control else segment._replace(text=printable_lines(segment.text))
