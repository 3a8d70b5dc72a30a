"""Cluster: one Slurm job per batch of cells. Preparing may run on nodes too; everything else runs on the login node."""

from workflow_scripts.cluster.site import (
    Attempt,
    cells_per_job,
    job_resources,
    load_site,
    predicted_limits_s,
    queue_resources,
    what_fits,
)

try:
    SITE = load_site(own_or_of_checkout(config["site"]))
    CELLS_PER_JOB = cells_per_job(SITE, STUDY, CELLS_PER_JOB)
except InputError as e:
    raise WorkflowError(str(e)) from None

BATCH_RESOURCES = (
    "runtime",
    "mem_mb",
    "cpus_per_task",
    "tasks_per_gpu",
    "gpu",
    "gpu_model",
    "gres",
    "constraint",
)
QUEUE_RESOURCES = ("slurm_account", "slurm_partition", "qos", "slurm_extra")
if workflow.is_main_process:
    elsewhere = sorted(set(GPUS) - set(SITE.gpus))
    if elsewhere:
        logger.warning(f"{config['site']} has no {', '.join(elsewhere)}: their cells are left to another cluster.")


def calibration_resource(name):
    """A resource of the job that calibrates a GPU, as for a batch of one cell per calibration."""

    def resource(wildcards, attempt):
        cells = [calibration.cell for calibration in CALIBRATIONS.values() if calibration.cell.gpu == wildcards.gpus]
        avoid = [path.name for path in PATHS.wrong_nodes(wildcards.gpus).glob("[!.]*")]
        limits = (STUDY.cell_time_limit_s, Attempt(attempt, SITE.attempts), avoid, {})
        return job_resources(cells, SITE, *limits).get(name)

    return resource


def batch_resource(name):
    """A resource of a batch's job as a function, as Snakemake expects it; None if the site does not set it."""

    def resource(wildcards, attempt):
        return batch_resources(wildcards.gpu, wildcards.key, attempt).get(name)

    return resource


@cache
def planned_limits_s():
    """Time limits of cells from the study's plan; none if `snakemake plan` was not called before."""
    return predicted_limits_s(PATHS.plan / "plan.csv")


@cache
def batch_resources(gpu, key, attempt):
    """Resources of a batch's attempt, for the cells that are still to be measured, if there are any."""
    batch = batch_of(gpu, key)
    left = [one.cell for one in batch.starts if one in MEASURING.again or not is_current(*one)]
    avoid = [path.name for path in PATHS.wrong_nodes(gpu).glob("[!.]*")]
    tries = Attempt(attempt, SITE.attempts)
    wanted = [CELLS[cell] for cell in left or [one.cell for one in batch.starts]]
    return job_resources(wanted, SITE, STUDY.cell_time_limit_s, tries, avoid, planned_limits_s())


prepares_on_nodes = SITE.prepare != "login"
fits = bool(set(GPUS) & set(SITE.gpus))
MEASURING = Measuring(
    **planned_rounds(
        [id for id, cell in CELLS.items() if cell.gpu in SITE.gpus],
        partial(batches_of_cluster, cells=CELLS, size=CELLS_PER_JOB),
    ),
    left={} if fits else CELLS,
    why_left="" if fits else f"study {STUDY.name!r} is for {', '.join(GPUS)}; {what_fits(SITE, config['site'])}",
    calibrated=[
        [gpu] for gpu in dict.fromkeys(wanted.cell.gpu for wanted in CALIBRATIONS.values()) if gpu in SITE.gpus
    ],
    calibrate_resources={name: calibration_resource(name) for name in (*BATCH_RESOURCES, *QUEUE_RESOURCES)},
    prepare_resources=queue_resources(SITE.queue_to_prepare()) if prepares_on_nodes else {},
    setup=SITE.shell_setup,
    launcher=SITE.launcher,
    attempts=SITE.attempts,
    threads=1,
    resources={name: batch_resource(name) for name in (*BATCH_RESOURCES, *QUEUE_RESOURCES)},
    on_nodes=(
        "measure",
        "calibrate_devices",
        *(("prepare_model", "prepare_workload", "install_environment") if prepares_on_nodes else ()),
    ),
)
