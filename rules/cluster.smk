"""Cluster: the resources of jobs that run on nodes, by the site file. A run on one machine has none of them."""

NAMES = ("runtime", "mem_mb", "cpus_per_task", "tasks_per_gpu", "gpu", "gpu_model", "gres", "constraint")
NAMES += ("slurm_account", "slurm_partition", "qos", "slurm_extra")

ATTEMPTS = SITE.attempts if SITE else 1
# All cores of a local run, because nothing else may load the machine while a device is measured.
THREADS = 1 if SITE else workflow.resource_settings.cores or 1
SETUP = SITE.shell_setup if SITE else ""
LAUNCHER = SITE.launcher if SITE else ""
PREPARES_ON_NODES = SITE is not None and SITE.prepare != "login"
PREPARE_RESOURCES = queue_resources(SITE.queue_to_prepare()) if PREPARES_ON_NODES else {}
ON_NODES = ["measure", "measure_cell", "prepare_device", "calibrate_devices"]
ON_NODES += ["prepare_model", "prepare_workload", "install_environment"] if PREPARES_ON_NODES else []


@cache
def resources_of(cells, attempt):
    """The resources of a job that measures these cells, which are of one GPU type."""
    avoid = [path.name for path in PATHS.wrong_nodes(cells[0].gpu).glob("[!.]*")]
    return job_resources(cells, SITE, STUDY.cell_time_limit_s, Attempt(attempt, ATTEMPTS), avoid)


def resources_for(cells_of):
    """Resources as functions, as Snakemake expects them, for the cells that a function of the wildcards gives."""

    def resource(name):
        return lambda wildcards, attempt: resources_of(tuple(cells_of(wildcards)), attempt).get(name)

    return {name: resource(name) for name in NAMES} if SITE else {}


def calibrated_cells(wildcards):
    """One cell per calibration of a device."""
    return [one.cell for one in CALIBRATIONS.values() if one.cell.gpu in wildcards.gpus.split("+")]


def first_cell(wildcards):
    return [next(cell for cell in CELLS.values() if cell.gpu == wildcards.gpu)]


def calibrated_together():
    """The devices that can be calibrated here, as lists that share a job: several names of this machine's CPU do, so
    that they are calibrated in turns and over a longer time."""
    cells = [one.cell for one in CALIBRATIONS.values()]
    absent = {cell.gpu for cell in cells_without_gpu(STUDY, cells, VISIBLE)} if is_asked else set()
    gpus = [
        gpu for gpu in dict.fromkeys(cell.gpu for cell in cells) if (gpu in SITE.gpus if SITE else gpu not in absent)
    ]
    cpus = [gpu for gpu in gpus if load_gpus()[gpu].kind == "cpu" and not SITE]
    return [*([cpus] if cpus else []), *([gpu] for gpu in gpus if gpu not in cpus)]
