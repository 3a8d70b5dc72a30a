"""Batches: what this call measures, and where. All of it follows from the study, the evidence and the devices here."""

# Set by the slurm profile: pending cells of a job. Then jobs run on nodes.
CELLS_PER_JOB = workflow.resource_settings.overwrite_scatter.get("cells_per_job")

try:
    SITE = load_site(own_or_of_checkout(config["site"])) if CELLS_PER_JOB else None
    # Halves of what is larger have as many as asked on average.
    MOST_PER_JOB = cells_per_job(SITE, STUDY, 3 * CELLS_PER_JOB // 2) if SITE else None
except InputError as e:
    raise WorkflowError(str(e)) from None

# With `--jobs`, which is for other machines, each job finds its device where it runs.
is_asked = workflow.is_main_process and not SITE and workflow.resource_settings.nodes is None
VISIBLE = gpus_here() if is_asked and any(load_gpus()[gpu].kind != "cpu" for gpu in GPUS) else []
WITHOUT_GPU = {cell.id for cell in cells_without_gpu(STUDY, [*CELLS.values()], VISIBLE)} if is_asked else set()
HERE = [id for id, cell in CELLS.items() if (cell.gpu in SITE.gpus if SITE else id not in WITHOUT_GPU)]
# The devices that decide together on further rounds.
GPUS_HERE = "+".join(gpus_of(CELLS[id] for id in HERE))


@cache
def pending():
    """The evidence and manifests when this call began."""
    try:
        return Pending(GRID, PATHS, HERE, MOST_PER_JOB, str(config["rerun"]), int(config["tries"]))
    except (InputError, ValueError) as e:
        raise WorkflowError(str(e)) from None


def decision(number):
    """The file that decides on a round; None for a round that every study has."""
    return PATHS.round_plan(GPUS_HERE, number) if number > STUDY.starts.at_least else None


def rounds():
    """The numbers of all rounds; Snakemake asks again after each decision."""
    yield from range(1, STUDY.starts.at_least + 1)
    for number in count(STUDY.starts.at_least + 1) if STUDY.starts.is_adaptive and HERE else ():
        checkpoints.decide.get(gpus=GPUS_HERE, round=number)
        if RoundPlan.read(decision(number)).ended:
            break
        yield number


def batches(number):
    """The batches of a round, with their pending starts."""
    plan = decision(number)
    return pending().wanted(number, tuple(RoundPlan.read(plan).starts) if plan else None)


def manifests(number, gpu=None):
    """The manifests of a round, or of its batches with cells of a GPU."""
    found = (one.batch for one in batches(number) if gpu is None or gpu in one.batch.gpus.split("+"))
    return [PATHS.manifest(batch.gpus, batch.round, batch.name) for batch in found]


def batch_of(wildcards):
    """The batch that a manifest names, also in the process of a job."""
    return named(int(wildcards.round), wildcards.gpus, wildcards.batch)


@cache
def named(number, gpus, name):
    try:
        return round_of(number, decision(number)).named(gpus, name)
    except InputError as e:
        raise WorkflowError(str(e)) from None


@cache
def round_of(number, plan):
    return Round(number, starts_of(number, GRID, plan), GRID)


def pending_cells(wildcards):
    """The cells that a batch still has to measure, or all of them in the process of a job."""
    batch = batch_of(wildcards)
    return pending_in(batch) if workflow.is_main_process else [CELLS[start.cell] for start in batch.starts]


@cache
def pending_in(batch):
    found = (one.pending for one in batches(batch.round) if one.batch == batch)
    return [CELLS[start.cell] for start in next(found, None) or batch.starts]


@cache
def tell(batch):
    """Print what a job would measure."""
    for one in batches(batch.round):
        if one.pending and one.batch == batch:
            logger.info(pending().in_words(one))


def needed_by_batch(wildcards):
    """Prepared files, the list of the round before, and the decision on the round."""
    batch = batch_of(wildcards)
    before = [PATHS.round_list(gpu, batch.round - 1) for gpu in batch.gpus.split("+") if batch.round > 1]
    plan = decision(batch.round)
    if workflow.dryrun:
        tell(batch)
    return [*ancient_files({start.cell for start in batch.starts}), *map(ancient, [*before, *([plan] if plan else [])])]


@cache
def why_left():
    """Which cells this machine cannot measure, in words; empty if there are none."""
    left = [CELLS[id] for id in sorted(WITHOUT_GPU) if len(pending().ended[id]) < STUDY.starts.at_least]
    remedy = unmeasurable(STUDY, left) or "The same call on a machine that has them measures these cells"
    return f"{what_is_left(left, VISIBLE)}. {remedy}." if left else ""


@cache
def tell_what_is_measured():
    """Log models without a tokenizer, and which cells are left out or repeated; stop if a cluster has no device."""
    wanted = [one for number in range(1, STUDY.starts.at_least + 1) for one in batches(number)]
    elsewhere = sorted(set(GPUS) - set(SITE.gpus)) if SITE else []
    if elsewhere and not HERE:
        raise WorkflowError(f"study {STUDY.name!r} is for {what_fits(SITE, config['site'], GPUS)}")
    others = f"{config['site']} has no {', '.join(elsewhere)}: their cells are left to another cluster."
    notes = [*without_tokenizer(STUDY), others if elsewhere else "", why_left(), *pending().notes(wanted)]
    for note in filter(None, notes):
        logger.warning(note)


def all_measured(wildcards):
    """All manifests, and the decisions that led to them."""
    if PARTIAL:
        return []
    tell_what_is_measured()
    numbers = list(rounds())
    decided = [PATHS.round_plan(GPUS_HERE, n) for n in range(STUDY.starts.at_least + 1, numbers[-1] + 2)]
    return [*(one for n in numbers for one in manifests(n)), *(decided if STUDY.starts.is_adaptive and HERE else [])]


def device_records():
    """Records of the devices' rates: those that are there, and of the devices whose cells are measured in this call. A
    plan alone measures none; Snakemake knows its targets after reading the rules."""
    reads = PARTIAL or set(workflow.dag_settings.targets) == {"plan"}
    pending_now = (
        [] if reads else [one.batch for n in range(1, STUDY.starts.at_least + 1) for one in batches(n) if one.pending]
    )
    measured = {gpu for batch in pending_now for gpu in batch.gpus.split("+")}
    return [PATHS.device(gpu) for gpu in GPUS if gpu in measured or PATHS.device(gpu).exists()]


def not_listed(gpu):
    """What parsing depends on besides the lists of measured starts: evidence that came here by other means."""
    return pending().not_listed_sha256(gpu, STUDY.starts.at_least, PARTIAL)


def names_of(files):
    """Manifests and lists as they are named below their folder; before a decision Snakemake does not know the files."""
    measured = PATHS.measured
    known = (Path(one) for one in files if Path(one).is_relative_to(measured))
    return [path.relative_to(measured).with_suffix("") for path in known]


def is_drawn():
    """Whether this call is for a report; not in the processes of jobs."""
    return workflow.is_main_process and any(job.rule.name == "report" for job in workflow.dag.jobs)


def measuring_jobs():
    """Of the jobs of this call that measure, by number: cells, time limits of this attempt and the next one."""
    needed = [job for job in workflow.dag.needrun_jobs(exclude_finished=False) if job.rule.name == "measure"]
    return {job.jobid: measuring(tuple(pending_cells(job.wildcards)), job.attempt) for job in needed}


@cache
def measuring(cells, attempt):
    attempts = range(attempt, min(attempt + 1, ATTEMPTS) + 1) if SITE else ()
    # Not from the cache: the nodes to avoid in a later attempt are not known yet.
    return len(cells), [resources_of.__wrapped__(cells, one)["runtime"] for one in attempts]
