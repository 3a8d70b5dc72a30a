"""What makes the tables of a study: one function per module, which gets the study and the tables made before."""

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import cached_property
from pathlib import Path

import pandas as pd
import pandera.pandas as pa

from workflow_scripts.catalog.published import PUBLISHED
from workflow_scripts.study.grid import Cell, expand
from workflow_scripts.study.paths import StudyPaths
from workflow_scripts.study.study import Study
from workflow_scripts.tables.measurements import MEASURED, joined
from workflow_scripts.tables.summary import Summaries
from workflow_scripts.tables.typed_tables import read_table, write_table

Make = Callable[["TableInputs"], pd.DataFrame | Sequence[pd.DataFrame]]


class TableInputs:
    """All that tables are made from. Each part is read when it is first asked for.

    `parsed` holds a folder of parsed tables for each GPU, `folder` the tables of the study, and `published` claims.yaml
    with its tables.
    """

    def __init__(
        self,
        study: Study,
        paths: StudyPaths,
        parsed: Path | None = None,
        folder: Path | None = None,
        published: Path = PUBLISHED,
    ) -> None:
        self.study, self.paths, self.published = study, paths, published
        self.parsed, self.folder = parsed or paths.root / "parsed", folder or paths.tables
        self.devices = paths.device("any").parent
        self._tables: dict[str, pd.DataFrame] = {}
        # Tables that another process makes, by name.
        self.elsewhere: dict[str, Future[None]] = {}

    def table(self, name: str) -> pd.DataFrame:
        """A table that was made before, or is made by now in another process. Raises TableError if there is none, or it
        does not fit its schema."""
        if name in self.elsewhere:
            self.elsewhere.pop(name).result()
        if name not in self._tables:
            self._tables[name] = read_table(self.folder / f"{name}.parquet")
        return self._tables[name]

    def write(self, name: str, frame: pd.DataFrame) -> None:
        """Write a table, for those that are made after it too. Raises TableError if it does not fit its schema."""
        self._tables[name] = write_table(frame, self.folder / f"{name}.parquet")

    @cached_property
    def grid(self) -> Sequence[Cell]:
        return expand(self.study)

    @cached_property
    def cells(self) -> pd.DataFrame:
        """What was measured, as the one frame of `tables.measurements`."""
        return joined(*(self.table(name) for name in ("cells", "starts", "repeats")))

    @cached_property
    def own(self) -> pd.DataFrame:
        """Of `cells` what this study has measured itself, of which there is evidence."""
        return self.cells[self.cells["study"].eq(self.study.name) & self.cells["source"].eq(MEASURED)]

    @cached_property
    def summed(self) -> Summaries:
        """The cells, each measure summed up once."""
        return Summaries(self.cells)


class TableMaker:
    """What makes one table or several: `make` returns them in the order of `schemas`, and is called only for a study
    that needs them. Others have them without rows. Those with `beside` are made in one other process: they read
    the tables of cells, starts and repeats alone."""

    def __init__(
        self, schemas: Sequence[pa.DataFrameSchema], needed: Callable[[TableInputs], bool], beside: bool, make: Make
    ) -> None:
        self.schemas, self.needed, self.beside, self.make = schemas, needed, beside, make

    def __call__(self, inputs: TableInputs) -> None:
        """Write the tables."""
        if self.needed(inputs):
            made = self.make(inputs)
            frames = [made] if isinstance(made, pd.DataFrame) else made
        else:
            frames = [pd.DataFrame(columns=list(schema.columns)) for schema in self.schemas]
        for schema, frame in zip(self.schemas, frames, strict=True):
            inputs.write(str(schema.name), frame)


def makes(
    *schemas: pa.DataFrameSchema, needed: Callable[[TableInputs], bool] = lambda inputs: True, beside: bool = False
) -> Callable[[Make], TableMaker]:
    """Declare that a function makes the tables with these schemas, for studies for which `needed` is true."""
    return lambda make: TableMaker(schemas, needed, beside, make)
