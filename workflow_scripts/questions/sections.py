"""The subjects of the report, in the page's order. Each module holds one: its section, figures, tables and answers."""

from collections.abc import Sequence

from workflow_scripts.page.report import Subject
from workflow_scripts.questions.cells import section as every_cell
from workflow_scripts.questions.cells import workload_requests
from workflow_scripts.questions.devices import section as device_ratios
from workflow_scripts.questions.energy import section as energy
from workflow_scripts.questions.engines import section as vllm_against_hf
from workflow_scripts.questions.knobs import latency, prefix_caching, sequence_limit
from workflow_scripts.questions.knobs import section as other_settings
from workflow_scripts.questions.limits import section as hardware_limits
from workflow_scripts.questions.memory import kv_block_size
from workflow_scripts.questions.memory import section as memory_pressure
from workflow_scripts.questions.predictions import section as predicted_and_measured
from workflow_scripts.questions.recommendations import section as settings_to_serve
from workflow_scripts.questions.serving import section as servers_under_load
from workflow_scripts.questions.table_docs import schemas
from workflow_scripts.questions.trust import appendix
from workflow_scripts.questions.trust import section as how_sure

schemas()  # imports every module that makes a table, so that each table is checked when a section reads it

# The sections of the page, then what it folds at its end.
_SECTIONS = (
    *(sequence_limit, device_ratios, latency, servers_under_load, hardware_limits),
    *(energy, vllm_against_hf, prefix_caching, kv_block_size, memory_pressure, other_settings),
    *(predicted_and_measured, how_sure),
)
SECTIONS: Sequence[Subject] = [module.SUBJECT for module in _SECTIONS]
APPENDIX: Sequence[Subject] = [
    *(module.SUBJECT for module in (every_cell, settings_to_serve, workload_requests)),
    *appendix.SUBJECTS,
]
SUBJECTS: Sequence[Subject] = (*SECTIONS, *APPENDIX)
