"""Present: figures and the page, drawn from tables alone."""


rule report:
    """The report of the study: one page that opens offline."""
    input:
        PATHS.tables / "cells.parquet",
    output:
        PATHS.report,
    shell:
        "touch {output}"
