"""Resume a run from its journal. The header of the journal has the workload, the settings and the devices."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Unpack

import msgspec

from atune.engine.settings import check_code, check_parts
from atune.errors import JournalError, UsageError, warn_caller
from atune.frontends.blocking import run_blocking, winning
from atune.frontends.run_options import RunOptions
from atune.frontends.tuner import tune
from atune.journal.events import RunStarted
from atune.journal.reader import JournalReader
from atune.journal.result import Result, TuneResult
from atune.journal.state import State, finished, header_in
from atune.model.options import documents, refuse_unknown
from atune.model.settings import BenchmarkSettings, Budget, CompileSettings
from atune.workload.pickling import FileRef, parse_file_ref
from atune.workload.workload import Workload


@documents(RunOptions)
async def resume(
    journal: str | os.PathLike[str],
    workload: Workload | FileRef | str | None = None,
    **options: Unpack[RunOptions],
) -> TuneResult:
    """Resume the run of `journal` and return the result of all its parts.

    A candidate that has an outcome is neither compiled nor measured again. But if the library of a finalist is gone,
    the finalist is compiled again for the final benchmark. Interrupted work is repeated. If the program died twice
    while it measured the same candidate, the candidate fails with the kind ``suspect``. If the run has finished, its
    result is returned.

    Options that you leave out are taken from the header. If the header has `CompileSettings` that can run programs,
    such as flags, give `compile` again, or put ``settings`` into `accept`.

    Raises `JournalError` if the journal cannot be read or opened, or if the work differs. The message lists the
    differences. Otherwise raises like `tune`. After a cancellation, you can resume again.

    Parameters
    ----------
    journal
        Path of the journal.
    workload
        As for `tune`. By default, the workers run the header's file. A file that you name gets the header's problem.
    {options}
    """
    given = known_options("resume", options)
    check_parts(given.get("accept", ()))
    state = read_state(journal)
    header = header_in(state)
    if finished(state, Budget.parse({**options_of(header), **given}["budget"])):
        return winning(Result.of(state, Path(journal), replayed=True))
    del state  # the run folds its own state
    chosen = completed_by(header, given)
    if workload is None and "machine" not in given:
        workload = origin_of(header)
    elif isinstance(workload, str):
        workload = msgspec.structs.replace(parse_file_ref(workload), arguments=header.arguments, torch=header.torch)
    return await tune(workload, journal=journal, **chosen)


@documents(RunOptions)
def run_resume(
    journal: str | os.PathLike[str],
    workload: Workload | FileRef | str | None = None,
    **options: Unpack[RunOptions],
) -> TuneResult:
    """Resume a run like `resume`, but block until the run ends. `run_resume` also works inside a running event loop.

    KeyboardInterrupt ends the run and kills every worker. Raises like `resume`.

    Parameters
    ----------
    journal, workload
        As for `resume`.
    {options}
    """
    return run_blocking(resume, journal, workload, **known_options("run_resume", options))


def known_options(where: str, given: Mapping[str, object]) -> dict[str, Any]:
    """Return the options `given` for a resumed run. For an unknown name, raises `UsageError`, which names `where`."""
    refuse_unknown(where, given, [*RunOptions.__annotations__])
    return dict(given)


def read_state(journal: str | os.PathLike[str]) -> State:
    """Fold all events of `journal`, and return the state. Raises `JournalError`."""
    return State.of(JournalReader(Path(journal)))


say_as_warning = partial(warn_caller, category=RuntimeWarning)


def origin_of(
    header: RunStarted,
    give: str = "give workload= (--workload FILE.py:NAME)",
    say: Callable[[str], object] = say_as_warning,
) -> FileRef:
    """Return the workload and the problem of a header. Calls `say` first, because the workload's file will run.

    Raises `UsageError` if the file is unknown or gone. The message ends with the advice `give`.
    """
    if not header.origin:
        raise UsageError(f"the journal does not name the file of its workload: {give}")
    if not os.path.isfile(file := header.origin.rpartition(":")[0]):
        raise UsageError(f"the journal's workload came from {file}, which is gone: {give}")
    say(f"running {file}, which the journal names")
    return msgspec.structs.replace(parse_file_ref(header.origin), arguments=header.arguments, torch=header.torch)


def completed_by(header: RunStarted, given: Mapping[str, Any]) -> dict[str, Any]:
    """Complete the options `given` with a header's options. Raises `JournalError` if the header may run code."""
    chosen = {**options_of(header), **given}
    if given.get("compile") is None:
        check_code(chosen["compile"], {}, given.get("accept", ()))
    return chosen


def options_of(header: RunStarted) -> dict[str, Any]:
    """Return the options of `tune` that a header holds. Raises `JournalError` if the options are invalid."""
    settings = header.settings
    try:
        return {
            "target": (header.target.arch or "cuda") if header.target.kind == "cuda" else "c",
            "devices": "all" if any("/" in name for name in header.devices) else header.devices,  # a / marks a cluster
            "strategy": header.strategy,
            "seed": int(settings.get("seed", 0)),
            **({"prior": False} if settings.get("prior") == "off" else {}),
            "pipeline": bool(settings.get("pipeline", True)),
            "budget": msgspec.convert(settings.get("budget", {}), Budget),
            "compile": msgspec.convert(settings.get("compile", {}), CompileSettings),
            "benchmark": msgspec.convert(settings.get("benchmark", {}), BenchmarkSettings),
        }
    except (msgspec.ValidationError, TypeError, ValueError) as error:
        raise JournalError(f"the journal's header has settings that this atune cannot read: {error}") from error
