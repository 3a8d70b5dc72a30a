"""Published tables of numbers, as CSV files: those on which claims are based, and those that a user audits."""

from pathlib import Path
from typing import TYPE_CHECKING

from workflow_scripts.catalog.published import CLAIMS, Claim, Published, PublishedError
from workflow_scripts.common.faults import InputError

if TYPE_CHECKING:
    import pandas as pd


def published_table(published: Published, claim: Claim) -> "pd.DataFrame":
    """The table on which a claim is based.

    Raises:
        PublishedError: the claim names no table, or the table cannot be read.
    """
    if claim.table is None:
        raise PublishedError(f"{published.folder / CLAIMS}: {claim.id}: needs a table")
    return read_csv(published.folder / claim.table, PublishedError)


def read_csv(path: Path, fault: type[InputError]) -> "pd.DataFrame":
    """The table in a CSV file.

    Raises:
        fault: the file cannot be opened, or is no such table.
    """
    import pandas as pd  # takes longer than the rest of `kvsweep audit`, and its help does not need it

    try:
        return pd.read_csv(path)
    except OSError as e:
        raise fault(f"{path}: {e.strerror}") from None
    except ValueError as e:
        raise fault(f"{path}: not a CSV table: {' '.join(str(e).split())}") from None
