"""kvsweep: a study of KV-cache memory, measured cell by cell and drawn into one report."""

from snakemake.utils import min_version

from workflow_scripts.common.checkout import own_or_of_checkout

min_version("9.0")


configfile: str(own_or_of_checkout("config/config.yaml"))


report: "report/workflow.rst"


include: "rules/common.smk"
include: "rules/batches.smk"
include: "rules/cluster.smk"
include: "rules/measure.smk"
include: "rules/prepare.smk"
include: "rules/plan.smk"
include: "rules/parse.smk"
include: "rules/analyse.smk"
include: "rules/present.smk"
include: "rules/deploy.smk"


onsuccess:
    if is_drawn():
        shell('python -m workflow_scripts status --study "$STUDY" --results "$RESULTS" --brief')


onerror:
    if workflow.is_main_process:
        shell(
            'python -m workflow_scripts status --study "$STUDY" --results "$RESULTS" --brief --failed={LINES.failed:q}'
        )


rule all:
    """Measure every cell of the study and draw its report."""
    default_target: True
    input:
        all_measured,
        lambda wildcards: PATHS.report if PARTIAL or not why_left() else PATHS.root / "left_out.txt",


rule left_out:
    """Say which cells this machine cannot measure, and fail; `all` needs it after the report, if there are any."""
    input:
        PATHS.report,
    output:
        PATHS.root / "left_out.txt",
    log:
        PATHS.root / "logs/left_out.log",
    params:
        why=lambda wildcards: why_left(),
    shell:
        "echo {params.why:q} > {log:q}; exit 1"


rule status:
    """Print the outcome of every cell: counts, and the reason and log of each cell that is not ok."""
    log:
        PATHS.root / "logs/status.log",
    shell:
        'python -m workflow_scripts status --study "$STUDY" --results "$RESULTS" 2> {log:q}'


rule compare:
    """Compare the study's results with those that `--config against=` names, such as another day's folder; with
    `fail_if_worse=1` fail only if something became worse than in them."""
    log:
        PATHS.root / "logs/compare.log",
    params:
        against=lambda wildcards: other_runs("against"),
        now=PATHS.root,
        out=PATHS.root / "comparison",
        flags=["--fail-if-worse"] * bool(config.get("fail_if_worse"))
        + [f"--occasions-vary={config[key]}" for key in ("occasions_vary",) if key in config],
    shell:
        "python -m workflow_scripts compare {params.against:q} {params.now:q} {params.flags:q}"
        " --html {params.out:q}.html --json {params.out:q}.json 2> {log:q}"
        " || {{ s=$?; cat {log:q} >&2; exit $s; }}"


rule archive_study:
    """Pack study file, locks, cells, tables, report and code into one archive, with hashes."""
    input:
        PATHS.report,
    output:
        PATHS.root / f"{STUDY.name}.zip",
    log:
        PATHS.root / "logs/archive_study.log",
    params:
        code=sources_sha256("study.archive"),
    shell:
        'python -m workflow_scripts archive --study "$STUDY" --results "$RESULTS" --out {output:q} > {log:q} 2>&1'


# On a cluster, nodes prepare and measure; planning, parsing and the report stay where snakemake runs.
workflow.localrules(*(rule.name for rule in workflow.rules if rule.name not in ON_NODES))
