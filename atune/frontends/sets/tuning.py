"""One run for a set of problems: their runs share the fork server, and two at a time share the cores and devices."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import AsyncExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Unpack

import anyio
import anyio.to_thread
import msgspec

from atune.engine.search.warm_start import distance
from atune.errors import AtuneError, DevicesLost, JournalError, MachineError, NoWinner, UsageError
from atune.frontends.api.blocking import run_blocking
from atune.frontends.api.options import RunOptions, completed, shows_progress
from atune.frontends.api.tuner import Tuner
from atune.frontends.api.warm_start import Warm, sources
from atune.frontends.sets.problems import Problem, Problems
from atune.frontends.sets.set_result import SetResult, TunedProblem, row_line
from atune.journal.result import Result
from atune.model.options import Option, documents, path, refuse_unknown
from atune.model.settings import CompileSettings
from atune.workers.local.machine import Host
from atune.workers.system.resources import usable_cores, usable_memory_bytes, workers_that_fit
from atune.workload.workload import FileRef, Workload, parse_file_ref

AT_ONCE = 2
"""Problems under way at the same time: one compiles while the other one is measured. It bounds the memory."""
ADVISERS = 4
"""Nearest problems whose results a new problem begins with."""
INDEX = "set.json"
"""The file in a set's folder that lists its problems."""


class SetOptions(RunOptions, total=False):
    """Options of a run of a set. Those of `tune` hold for each problem."""

    # fmt: off
    warm: Annotated[Warm, Option(
        "As for `tune`, in addition to what the set itself has found.",
    )]
    journal: Annotated[str | os.PathLike[str] | None, Option(
        "A folder with a journal for each problem, which is made if it is missing. A set whose folder is there is "
        "continued: nothing is measured twice, and new problems are added. None writes them into the cache folder, as "
        "single runs.",
        check=path,
    )]
    on_result: Annotated[Callable[[TunedProblem], None] | None, Option(
        "A plain function, called with each problem and its result as it ends.",
        fits=callable, must="must be a function of a `TunedProblem`",
    )]
    # fmt: on


@documents(SetOptions)
async def tune_set(
    workload: Workload | FileRef | str, problems: Problems | Iterable[Mapping[str, Any]], **options: Unpack[SetOptions]
) -> SetResult:
    """Tune `workload` for each of `problems`, and return all results.

    Two problems are under way at a time: while one is measured, the next one compiles. Devices measure for one
    problem at a time. Candidates with the same code are compiled once. Each problem begins with what was fast in the
    nearest ones that have ended. It has its own default, final and winner.

    A problem without a winner does not end the others; the result says why. Raises `NoWinner` if no problem has one,
    the first problem's error if each failed, and else what `tune` raises. Cancelling it keeps every journal.

    Parameters
    ----------
    workload
        A `Workload`, or ``"FILE.py:NAME"``. Each problem's arguments replace its own of the same names.
    problems
        `Problems`, or a list of dictionaries.
    {options}
    """
    refuse_unknown("tune_set", options, [*SetOptions.__annotations__])
    given: dict[str, Any] = dict(options)
    folder, on_result = given.pop("journal", None), given.pop("on_result", None)
    completed("tune_set", given)
    if given.get("machine") is not None:
        raise UsageError("tune_set: machine= holds one workload: leave it out, or tune each problem by itself")
    chosen = problems if isinstance(problems, Problems) else Problems(problems)
    run = _SetRun(workload, chosen, given, None if folder is None else Path(str(folder)), on_result)
    return await run.all()


@documents(SetOptions)
def run_set(
    workload: Workload | FileRef | str, problems: Problems | Iterable[Mapping[str, Any]], **options: Unpack[SetOptions]
) -> SetResult:
    """Do what `tune_set` does, blocking. Works inside a running event loop too.

    Parameters
    ----------
    workload, problems
        As for `tune_set`.
    {options}
    """
    return run_blocking(tune_set, workload, problems, **options)


class _SetRun:
    """The runs of one set."""

    def __init__(
        self,
        workload: Workload | FileRef | str,
        problems: Problems,
        options: dict[str, Any],
        folder: Path | None,
        on_result: Callable[[TunedProblem], None] | None,
    ) -> None:
        self._workload = parse_file_ref(workload) if isinstance(workload, str) else workload
        self._problems, self._options, self._folder = problems, options, folder
        self._listeners = [] if on_result is None else [on_result]
        if shows_progress(options):
            self._listeners.append(self._print)
        self._options["progress"] = False
        self._at_once = 1 if options.get("cluster") else min(AT_ONCE, len(problems))
        self._rows: dict[int, TunedProblem] = {}
        self._errors: dict[int, AtuneError] = {}
        self._journals: list[Path | None] = [None] * len(problems)

    async def all(self) -> SetResult:
        """Tune every problem."""
        if self._folder is not None:
            self._journals = list(await anyio.to_thread.run_sync(entered, self._folder, self._problems))
        slots, host = anyio.Semaphore(self._at_once), Host()
        async with AsyncExitStack() as stack:
            if not self._options.get("cluster"):
                await stack.enter_async_context(host.open())
            async with anyio.create_task_group() as tasks:
                for index in range(len(self._problems)):
                    await slots.acquire()
                    tasks.start_soon(self._one, index, host, slots)
        found = SetResult([self._rows[index] for index in range(len(self._problems))], self._folder)
        if len(self._errors) == len(found):
            raise self._errors[0]
        if not found.winners:
            tried = next(row.result for row in found if row.result is not None)
            raise NoWinner(f"no problem of {len(found)} has a winner\n{found}", tried)
        return found

    async def _one(self, index: int, host: Host, slots: anyio.Semaphore) -> None:
        problem, result = self._problems[index], None
        try:
            result = await self._tuned(problem, self._journals[index], host)
        except NoWinner as error:
            result = error.result
        except (JournalError, MachineError, DevicesLost):
            raise
        except AtuneError as error:
            self._errors[index] = error
        finally:
            slots.release()
        row = TunedProblem(problem, result, str(self._errors.get(index, "")))
        self._rows[index] = row
        for listener in self._listeners:
            listener(row)

    def _print(self, row: TunedProblem) -> None:
        with suppress(OSError):  # nobody reads it
            print(f"[{len(self._rows)}/{len(self._problems)}] {row_line(row)}", file=sys.stderr, flush=True)

    async def _tuned(self, problem: Problem, journal: Path | None, host: Host) -> Result:
        options = {**self._options, "compile": self._compile()}
        if journal is not None:
            options["journal"] = journal
        if not (journal and journal.exists()):
            options["warm"] = [*sources(options.get("warm")), *self._nearest(problem)]
        make = partial(Tuner, self._at(problem), **options)
        tuner = await anyio.to_thread.run_sync(make, abandon_on_cancel=True)
        tuner.share(host)
        async with tuner:
            return await tuner.result()

    def _at(self, problem: Problem) -> Workload | FileRef:
        if isinstance(self._workload, Workload):
            return self._workload.at(problem.arguments)
        return msgspec.structs.replace(self._workload, arguments=problem.arguments)

    def _nearest(self, problem: Problem) -> list[Result]:
        """Return the results of the nearest problems that have ended with a winner."""
        ended = [(index, row.result) for index, row in self._rows.items() if row.result is not None and row.won]
        ended.sort(key=lambda one: (distance(self._problems[one[0]].arguments, problem.arguments), one[0]))
        return [result for _, result in ended[:ADVISERS]]

    def _compile(self) -> CompileSettings:
        """Return the settings for one of the runs that share the cores, unless the caller decided."""
        settings: CompileSettings = self._options.get("compile") or CompileSettings()
        if settings.workers is not None or self._at_once == 1:
            return settings
        fit = workers_that_fit(len(usable_cores()) - 1, usable_memory_bytes())
        return msgspec.structs.replace(settings, workers=max(1, fit // self._at_once))


def entered(folder: Path, problems: Problems) -> list[Path]:
    """Return the journal of each problem in a set's folder, which is made or gets the problems that it lacks.

    Raises `UsageError` if the folder is another thing, or cannot be written.
    """
    index = folder / INDEX
    try:
        folder.mkdir(parents=False, exist_ok=True)
        known: list[dict[str, Any]] = json.loads(index.read_text()) if index.exists() else []
        names = {Problem(row["arguments"]).key: str(row["journal"]) for row in known}
        for problem in problems:
            if problem.key not in names:
                names[problem.key] = f"{len(names):04}.jsonl"
                known.append({"arguments": problem.arguments, "weight": problem.weight, "journal": names[problem.key]})
        written = index.with_suffix(".new")
        written.write_text(json.dumps(known, indent=1) + "\n")
        written.replace(index)
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise UsageError(
            f"journal {folder}: no folder of a set's journals, or it cannot be written: {error}"
        ) from error
    return [folder / names[problem.key] for problem in problems]
