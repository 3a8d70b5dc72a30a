"""The tables on which published claims are based."""

import pandas as pd

from workflow_scripts.catalog.published import CLAIMS, Claim, Published, PublishedError


def published_table(published: Published, claim: Claim) -> pd.DataFrame:
    """The table on which a claim is based.

    Raises:
        PublishedError: the claim names no table, or the table cannot be read.
    """
    if claim.table is None:
        raise PublishedError(f"{published.folder / CLAIMS}: {claim.id}: needs a table")
    path = published.folder / claim.table
    try:
        return pd.read_csv(path)
    except OSError as e:
        raise PublishedError(f"{path}: {e.strerror}") from None
    except ValueError as e:
        raise PublishedError(f"{path}: not a CSV table: {' '.join(str(e).split())}") from None
