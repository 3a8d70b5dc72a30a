"""The subjects of the report, in the page's order. Each module holds one: its section, figures, tables and findings."""

from collections.abc import Sequence

from workflow_scripts.present.sentences import what_verdicts_cover
from workflow_scripts.present.subject import Subject
from workflow_scripts.present.subjects import (
    answers_compared,
    block_tables_by_step,
    cache_capacity,
    central_tables,
    claims_retested,
    device_ratios,
    energy,
    every_cell,
    glossary,
    hardware_limits,
    kv_block_size,
    memory_pressure,
    other_settings,
    over_time,
    predicted_and_measured,
    prefix_caching,
    reserved_memory,
    sequence_limit,
    servers_under_load,
    settings_to_serve,
    speculation,
    take_away,
    vllm_against_hf,
    wasted_memory,
    what_ran,
    where_measured,
    workload_requests,
)

_MODULES = (
    settings_to_serve,
    what_ran,
    workload_requests,
    central_tables,
    sequence_limit,
    kv_block_size,
    prefix_caching,
    speculation,
    block_tables_by_step,
    memory_pressure,
    other_settings,
    vllm_against_hf,
    servers_under_load,
    answers_compared,
    cache_capacity,
    predicted_and_measured,
    over_time,
    reserved_memory,
    wasted_memory,
    device_ratios,
    hardware_limits,
    energy,
    claims_retested,
    every_cell,
    where_measured,
    take_away,
    glossary,
)
_SUBJECTS = [module.SUBJECT for module in _MODULES]
HEADLINES = Subject(
    id="findings",
    title="Headline findings",
    lead="What the tables say. The sections below give the details.",
    parts=[
        *(warning for subject in _SUBJECTS for warning in subject.warnings),
        *(finding for subject in _SUBJECTS for finding in subject.findings),
        what_verdicts_cover,
    ],
    is_summary=True,
)
SUBJECTS: Sequence[Subject] = (HEADLINES, *_SUBJECTS)
