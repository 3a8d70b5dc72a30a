"""kvsweep: a study of KV-cache memory, measured cell by cell and drawn into one report."""

from snakemake.utils import min_version

min_version("9.0")


configfile: "config/config.yaml"


include: "rules/common.smk"
include: "rules/prepare.smk"
include: "rules/measure.smk"
include: "rules/parse.smk"
include: "rules/analyse.smk"
include: "rules/present.smk"


localrules:
    all,


rule all:
    """The report of the study, every cell measured."""
    default_target: True
    input:
        PATHS.report,
