"""The subjects of the report, in the page's order. Each module holds one: its section, figures, tables, sentences."""

from collections.abc import Sequence

from workflow_scripts.present.report import Subject
from workflow_scripts.present.subjects import (
    answers_compared,
    block_tables_by_step,
    central_tables,
    device_ratios,
    energy,
    environments_compared,
    every_cell,
    glossary,
    hardware_limits,
    host_waiting,
    how_sure,
    kv_block_size,
    latency,
    measured_or_predicted,
    memory_pressure,
    other_settings,
    over_time,
    predicted_and_measured,
    prefix_caching,
    sequence_limit,
    servers_under_load,
    settings_to_serve,
    speculation,
    take_away,
    vllm_against_hf,
    what_ran,
    where_measured,
    workload_requests,
)

# The sections of the page, then what it folds at its end.
_SECTIONS = (
    *(
        measured_or_predicted,
        environments_compared,
        sequence_limit,
        device_ratios,
        hardware_limits,
        latency,
        host_waiting,
        energy,
    ),
    *(vllm_against_hf, prefix_caching, kv_block_size, memory_pressure, other_settings, speculation, answers_compared),
    *(predicted_and_measured, servers_under_load, how_sure),
)
_APPENDIX = (
    *(every_cell, settings_to_serve, central_tables, workload_requests, over_time, block_tables_by_step, what_ran),
    *(where_measured, take_away, glossary),
)
SECTIONS: Sequence[Subject] = [module.SUBJECT for module in _SECTIONS]
APPENDIX: Sequence[Subject] = [module.SUBJECT for module in _APPENDIX]
SUBJECTS: Sequence[Subject] = (*SECTIONS, *APPENDIX)
