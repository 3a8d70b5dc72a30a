"""Present: figures and the page, drawn from tables."""


rule figures:
    """Every figure of the report, as SVG for the page and PNG for papers."""
    input:
        tables=list(map(table, TABLES)),
        parsed=expand(PATHS.parsed("{gpu}") / "{table}", gpu=GPUS, table=PARSED),
    output:
        report(
            directory(PATHS.figures),
            patterns=["{name}.png"],
            caption="../report/figure.rst",
            category="Figures",
            labels={"figure": "{name}"},
        ),
    log:
        PATHS.root / "logs/figures.log",
    params:
        code=sources_sha256("present.figures", beside=HOME.glob("workflow_scripts/questions/*/*.rst")),
        settings=SETTINGS,
        tables=PATHS.tables,
    shell:
        "nice -n 19 python -m workflow_scripts figures"
        ' --study "$STUDY"'
        " --tables {params.tables:q}"
        " --out {output:q}"
        " > {log:q} 2>&1"


rule report:
    """The report of the study: one page that opens offline."""
    input:
        tables=list(map(table, TABLES)),
        parsed=expand(PATHS.parsed("{gpu}") / "{table}", gpu=GPUS, table=PARSED),
        figures=PATHS.figures,
    output:
        report(PATHS.report, caption="../report/page.rst", category="Report", labels={"page": "all answers"}),
    log:
        PATHS.root / "logs/report.log",
    params:
        code=sources_sha256("present.page", beside=HOME.glob("report/**/*.*")),
        settings=SETTINGS,
        tables=PATHS.tables,
        cells=PATHS.root / "cells",
    shell:
        "nice -n 19 python -m workflow_scripts draw-report"
        ' --study "$STUDY"'
        " --tables {params.tables:q}"
        " --figures {input.figures:q}"
        " --cells {params.cells:q}"
        " --out {output:q}"
        " > {log:q} 2>&1"
