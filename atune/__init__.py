"""Tune TileLang kernels with an asyncio event-driven engine.

    import atune

    workload = atune.Workload(matmul, atune.Space(block_M=[64, 128]), arguments={"M": 4096}, reference=torch_matmul)
    result = await atune.tune(workload)     # or atune.run(workload) in blocking code
    result.kernel(A, B)

Import the classes of a result from `atune.results`, a run's events from `atune.events`, exceptions from `atune.errors`
and axes of layouts from `atune.layout`. `atune.bundle` loads tuned kernels without tilelang.
Importing atune imports neither tilelang nor torch, configures no logging and writes no file.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from atune.version import __version__ as __version__

if TYPE_CHECKING:
    # What to tune
    from atune.model.space import Space as Space
    from atune.workload.workload import Workload as Workload

    from atune.model.settings import BenchmarkSettings as BenchmarkSettings
    from atune.model.settings import CompileSettings as CompileSettings

    # Tune
    from atune.frontends.tuner import Tuner as Tuner
    from atune.frontends.tuner import run as run
    from atune.frontends.tuner import tune as tune
    from atune.frontends.resume import resume as resume
    from atune.frontends.resume import run_resume as run_resume
    from atune.frontends.compile_all import compile_all as compile_all
    from atune.frontends.measure import measure as measure
    from atune.frontends.measure import measure_many as measure_many
    from atune.frontends.pick import pick as pick
    from atune.frontends.problems import Problems as Problems
    from atune.frontends.tune_set import run_set as run_set
    from atune.frontends.tune_set import tune_set as tune_set
    from atune.workers.server import shutdown as shutdown
    from atune.workers.server import warm as warm

    # Kernels that tune themselves
    from atune.frontends.autotuned import autotune as autotune
    from atune.frontends.autotuned import clear_cache as clear_cache
    from atune.frontends.autotuned import tunings as tunings

    # Results
    from atune.errors import NoWinner as NoWinner
    from atune.journal.reader import replay as replay
    from atune.journal.result import TuneResult as TuneResult

    # Modules with more names
    from atune import bundle as bundle
    from atune import errors as errors
    from atune import events as events
    from atune import layout as layout
    from atune import results as results

# Names load on first use, which keeps `import atune` fast in workers and at the command line.
_HOME = {
    "atune.model.space": ("Space",),
    "atune.workload.workload": ("Workload",),
    "atune.model.settings": ("BenchmarkSettings", "CompileSettings"),
    "atune.frontends.tuner": ("Tuner", "run", "tune"),
    "atune.frontends.resume": ("resume", "run_resume"),
    "atune.frontends.compile_all": ("compile_all",),
    "atune.frontends.measure": ("measure", "measure_many"),
    "atune.frontends.pick": ("pick",),
    "atune.frontends.problems": ("Problems",),
    "atune.frontends.tune_set": ("run_set", "tune_set"),
    "atune.workers.server": ("shutdown", "warm"),
    "atune.frontends.autotuned": ("autotune", "clear_cache", "tunings"),
    "atune.errors": ("NoWinner",),
    "atune.journal.reader": ("replay",),
    "atune.journal.result": ("TuneResult",),
}
_MODULE_OF = {name: module for module, names in _HOME.items() for name in names}
_MODULES = ("bundle", "errors", "events", "layout", "results")
__all__ = sorted(_MODULE_OF)


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"atune.{name}")
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'atune' has no attribute {name!r}")
    value = getattr(importlib.import_module(_MODULE_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*__all__, *_MODULES, *(name for name in globals() if name.startswith("__"))])
