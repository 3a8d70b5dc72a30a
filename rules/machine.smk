"""This machine: its cells, and what is left to others. All cells of a round are one batch, in a random order."""

from workflow_scripts.study.gpus_here import cells_without_gpu, gpus_here, unmeasurable, what_is_left

# With `--jobs`, which is for other machines, each job finds its device where it runs.
is_local = workflow.is_main_process and workflow.resource_settings.nodes is None
elsewhere, absent = {}, set()
if is_local and any(load_gpus()[gpu].kind != "cpu" for gpu in GPUS):
    gpus = gpus_here()
    elsewhere = {cell.id: cell for cell in cells_without_gpu(STUDY, list(CELLS.values()), gpus)}
    absent = {cell.gpu for cell in cells_without_gpu(STUDY, [wanted.cell for wanted in CALIBRATIONS.values()], gpus)}
left = {id: cell for id, cell in elsewhere.items() if not is_measured(id)}
why_left = ""
if left:
    elsewhere_too = unmeasurable(STUDY, [*left.values()])
    remedy = elsewhere_too or "The same call on a machine that has them measures these cells"
    why_left = f"{what_is_left([*left.values()], gpus)}. {remedy}."

calibrated = [gpu for gpu in dict.fromkeys(wanted.cell.gpu for wanted in CALIBRATIONS.values()) if gpu not in absent]
cpus = [gpu for gpu in calibrated if load_gpus()[gpu].kind == "cpu"]
MEASURING = Measuring(
    **planned_rounds([id for id in CELLS if id not in elsewhere], batches_of_machine),
    left=left,
    why_left=why_left,
    # Several names of this machine's CPU share a job, which calibrates them in turns and so over a longer time.
    calibrated=[*([cpus] if cpus else []), *([gpu] for gpu in calibrated if gpu not in cpus)],
    on_nodes=("measure", "measure_cell"),
)
