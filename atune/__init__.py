"""Tune TileLang kernels with an asyncio event-driven engine.

    import atune

    workload = atune.Workload(matmul, atune.Space(block_M=[64, 128]), arguments={"M": 4096}, reference=torch_matmul)
    result = await atune.tune(workload)     # or atune.run(workload) in blocking code
    result.kernel(A, B)

Importing atune imports neither tilelang nor torch, configures no logging and writes no file.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

from atune.version import __version__ as __version__

if TYPE_CHECKING:
    # What to tune
    from atune.model.space import Space as Space
    from atune.workload.workload import Workload as Workload

    # Tune
    from atune.frontends.api.tuner import Tuner as Tuner
    from atune.frontends.api.tuner import run as run
    from atune.frontends.api.tuner import tune as tune
    from atune.frontends.api.compile_all import compile_all as compile_all
    from atune.frontends.api.compile_all import CompileFailed as CompileFailed
    from atune.workers.processes.server import shutdown as shutdown
    from atune.workers.processes.server import warm as warm
    from atune.frontends.api.resume import resume as resume
    from atune.frontends.api.resume import run_resume as run_resume
    from atune.model.settings import BenchmarkSettings as BenchmarkSettings
    from atune.model.settings import Budget as Budget
    from atune.model.settings import CompileSettings as CompileSettings

    # Kernels that tune themselves
    from atune.frontends.decorator.decorator import autotune as autotune
    from atune.frontends.decorator.decorator import best_config as best_config
    from atune.frontends.decorator.decorator import clear_cache as clear_cache
    from atune.frontends.decorator.decorator import tunings as tunings

    # Events of a run
    from atune.journal.events import ArtifactBuilt as ArtifactBuilt
    from atune.journal.events import BenchmarkFailed as BenchmarkFailed
    from atune.journal.events import BenchmarkRepeated as BenchmarkRepeated
    from atune.journal.events import BenchmarkStarted as BenchmarkStarted
    from atune.journal.events import BestChanged as BestChanged
    from atune.journal.events import BuildFailed as BuildFailed
    from atune.journal.events import CandidateAliased as CandidateAliased
    from atune.journal.events import CandidateLowered as CandidateLowered
    from atune.journal.events import CandidateMeasured as CandidateMeasured
    from atune.journal.events import CandidateProposed as CandidateProposed
    from atune.journal.events import CandidatePruned as CandidatePruned
    from atune.journal.events import CompileRepeated as CompileRepeated
    from atune.journal.events import DeviceExcluded as DeviceExcluded
    from atune.journal.events import DeviceLost as DeviceLost
    from atune.journal.events import DeviceReady as DeviceReady
    from atune.journal.events import Event as Event
    from atune.journal.events import FinalOrdered as FinalOrdered
    from atune.journal.events import FinalStarted as FinalStarted
    from atune.journal.events import GroupSplit as GroupSplit
    from atune.journal.events import JournalRepaired as JournalRepaired
    from atune.journal.events import ReferenceMeasured as ReferenceMeasured
    from atune.journal.events import RunFinished as RunFinished
    from atune.journal.events import RunInterrupted as RunInterrupted
    from atune.journal.events import RunResumed as RunResumed
    from atune.journal.events import RunStarted as RunStarted
    from atune.journal.events import SpaceSurveyed as SpaceSurveyed
    from atune.journal.events import Warned as Warned
    from atune.journal.events import WinnerProven as WinnerProven

    # Results
    from atune.model.artifact import Failure as Failure
    from atune.model.measurement import Measurement as Measurement
    from atune.model.measurement import Timing as Timing
    from atune.journal.replay import replay as replay
    from atune.journal.replay import simulate as simulate
    from atune.journal.merge import merge as merge
    from atune.journal.result import Record as Record
    from atune.journal.result import TuneResult as TuneResult

    # Errors
    from atune.errors import AtuneError as AtuneError
    from atune.errors import CacheMiss as CacheMiss
    from atune.errors import DevicesLost as DevicesLost
    from atune.errors import JournalError as JournalError
    from atune.errors import MachineError as MachineError
    from atune.journal.result import NoWinner as NoWinner
    from atune.errors import SpaceError as SpaceError
    from atune.errors import StrategyError as StrategyError
    from atune.errors import TargetError as TargetError
    from atune.errors import UsageError as UsageError
    from atune.errors import WorkerError as WorkerError
    from atune.errors import WorkloadError as WorkloadError

# Names load on first use, which keeps `import atune` fast in workers and at the command line.
_HOME = {
    "atune.model.space": ("Space",),
    "atune.workload.workload": ("Workload",),
    "atune.frontends.api.compile_all": ("CompileFailed", "compile_all"),
    "atune.workers.processes.server": ("shutdown", "warm"),
    "atune.frontends.api.tuner": ("Tuner", "run", "tune"),
    "atune.frontends.api.resume": ("resume", "run_resume"),
    "atune.frontends.decorator.decorator": ("autotune", "best_config", "clear_cache", "tunings"),
    "atune.model.settings": ("BenchmarkSettings", "Budget", "CompileSettings"),
    "atune.journal.events": (
        "ArtifactBuilt",
        "BenchmarkFailed",
        "BenchmarkRepeated",
        "BenchmarkStarted",
        "BestChanged",
        "BuildFailed",
        "CandidateAliased",
        "CandidateLowered",
        "CandidateMeasured",
        "CandidateProposed",
        "CandidatePruned",
        "CompileRepeated",
        "DeviceExcluded",
        "DeviceLost",
        "DeviceReady",
        "Event",
        "FinalOrdered",
        "FinalStarted",
        "GroupSplit",
        "JournalRepaired",
        "ReferenceMeasured",
        "RunFinished",
        "RunInterrupted",
        "RunResumed",
        "RunStarted",
        "SpaceSurveyed",
        "Warned",
        "WinnerProven",
    ),
    "atune.model.artifact": ("Failure",),
    "atune.model.measurement": ("Measurement", "Timing"),
    "atune.journal.replay": ("replay", "simulate"),
    "atune.journal.merge": ("merge",),
    "atune.journal.result": ("NoWinner", "Record", "TuneResult"),
    "atune.errors": (
        "AtuneError",
        "CacheMiss",
        "DevicesLost",
        "JournalError",
        "MachineError",
        "SpaceError",
        "StrategyError",
        "TargetError",
        "UsageError",
        "WorkerError",
        "WorkloadError",
    ),
}
_MODULE_OF = {name: module for module, names in _HOME.items() for name in names}
__all__ = sorted(_MODULE_OF)


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'atune' has no attribute {name!r}")
    value = getattr(importlib.import_module(_MODULE_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


if "IPython" in sys.modules:
    from atune.reporting.notebook import enable as _enable

    _enable()
