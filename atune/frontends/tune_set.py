"""Tune a set of problems: a few runs at a time share the fork server, the cores and the devices."""

from __future__ import annotations

import math
import os
import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import replace
from functools import partial
from html import escape
from pathlib import Path
from typing import Any, Unpack

import anyio
import anyio.to_thread
import msgspec

from atune.engine.run_state import Listeners, opened_aside
from atune.errors import (
    ArgumentMissing,
    AtuneError,
    DevicesLost,
    JournalError,
    MachineError,
    NoSuchWorkload,
    NoWinner,
    TargetError,
    UnknownArgument,
    UsageError,
)
from atune.frontends.blocking import run_blocking, unwrapped
from atune.frontends.problems import Given, Problems
from atune.frontends.resume import completed_by, known_options, origin_of
from atune.frontends.run_options import RunOptions, SetOptions
from atune.frontends.save_bundle import save_bundle
from atune.frontends.tuner import RunPlan, Tuner, find_target, named_work
from atune.frontends.warm_start import Warm, adviser
from atune.journal.events import DeviceLost, Event, RunStarted
from atune.journal.result import Result
from atune.journal.set_folder import (
    TunedProblem,
    forget_added,
    header_of_set,
    is_set,
    journals_in,
    listed,
    open_set_folder,
    tuned_problems,
)
from atune.journal.writer import write_output
from atune.model.candidate import Problem, config_key, describe_config, distance
from atune.model.options import documents
from atune.model.settings import CompileSettings
from atune.model.space import Space
from atune.reporting.progress import INTERVAL_S, SELDOM_S, is_watched
from atune.reporting.set_table import row_line, set_lines, set_page
from atune.reporting.sets import MAX_REGRET, Cover, NearestRule, RegretMatrix, cover, dispatch_rule, regret_matrix
from atune.reporting.text import Output, plain, printed, shown
from atune.workers.local_machine import Shared, shared_processes
from atune.workers.resources import usable_cores, usable_memory_bytes, workers_that_fit
from atune.workers.result_cache import ResultCache
from atune.workload.pickling import FileRef
from atune.workload.workload import Workload

AT_ONCE, WORKERS_EACH = 4, 5
"""`AT_ONCE`: largest number of problems to tune at the same time for each device, so that a device can measure another
problem while a problem's last candidate compiles. `WORKERS_EACH`: least number of compile workers for each problem if
more than two problems are tuned, so that each library holds several candidates. On an H100 with 16 cores, a set of 28
problems took 0.81 times as long with these values as with two problems at a time."""
LOAD = 1.5
"""Number of compile workers per core for all problems in progress; above 1, because each problem waits for its last
compile. On an H200 with 16 cores, a set of 11 problems took 0.77 times as long as with one worker per core."""
OF_ALL = (ArgumentMissing, NoSuchWorkload, JournalError, MachineError, DevicesLost)
"""Errors that end the whole set, even if they occur in a single problem."""
PROBLEMS_EACH = 2
"""With at least this many problems per device, each problem uses a single device instead of all devices."""
ADVISERS = 2
"""Number of nearest problems whose winners a new problem tries first."""


class SetResult(Sequence[TunedProblem]):
    """The problems of a set with their results, in the set's order.

    ``result[{"M": 128, "N": 4096}]`` is the `Result` of a problem. ``result[0]`` is a row of the table that
    ``str(result)`` returns. `folder` holds the journals.
    """

    def __init__(self, rows: Sequence[TunedProblem], folder: Path, workload: object = None) -> None:
        self._rows, self.folder = tuple(rows), folder
        self._space: Space | None = getattr(workload, "space", None)
        self._by_key = {row.problem.key: row for row in rows}
        begun = [(row.result.header, row.problem) for row in rows if row.result is not None]
        fixed = [(n, v) for header, given in begun[:1] for n, v in header.arguments.items() if n not in given.arguments]
        self._fixed = dict(fixed)

    @property
    def winners(self) -> list[TunedProblem]:
        """The problems that have a winner."""
        return [row for row in self._rows if row.won]

    @property
    def results(self) -> list[Result]:
        """The results of the problems that have a winner."""
        return [row.result for row in self.winners if row.result is not None]

    def save_bundle(self, folder: str | os.PathLike[str]) -> str:
        """Write the winners as a bundle, as `atune.results.save_bundle` does, and return its digest."""
        return save_bundle(folder, self.results)

    def report(self, path: str | os.PathLike[str]) -> None:
        """Write the same page as ``atune report`` to the file `path`. An existing file is replaced.

        Raises `UsageError` if `path` cannot be written.
        """
        write_output(os.fspath(path), set_page(self, self.folder).encode())

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: Any) -> Any:
        if not isinstance(index, Mapping):
            return self._rows[index]
        changed = {name: value for name, value in index.items() if (name, value) not in self._fixed.items()}
        if (row := self._by_key.get(config_key(changed))) is None:
            raise KeyError(f"the set has no problem {describe_config(dict(index))}, but {len(self)} others")
        if row.result is None:
            raise KeyError(f"{row.problem} could not be tuned: {row.error}")
        return row.result

    def __str__(self) -> str:
        return printed(plain(set_lines(self, self.folder)))

    def _repr_html_(self) -> str:
        """Return the table for a notebook."""
        return f"<pre>{escape(str(self))}</pre>"

    def __repr__(self) -> str:
        return f"SetResult({len(self)} problem{'s' * (len(self) != 1)}, {len(self.winners)} with a winner)"

    def regret_matrix(self) -> RegretMatrix:
        """Return the slowdown of winners and finalists against the winner of each problem; see `atune.sets`."""
        return regret_matrix(self.results)

    def cover(self, max_regret: float = MAX_REGRET) -> Cover:
        """Choose a few configurations that serve all problems with a winner; see `atune.sets.cover`."""
        return cover(self.regret_matrix(), max_regret)

    def rule(self, space: Space | None = None) -> NearestRule:
        """Return the rule that chooses a configuration for new problems; see `atune.sets.dispatch_rule`.

        `space`: the workload's space. Pass the space if its constraints take sizes and the workload came from a file.
        """
        return replace(dispatch_rule(self.regret_matrix(), space or self._space), fixed=self._fixed)


@documents(SetOptions)
async def tune_set(
    workload: Workload | FileRef | str, problems: Problems | Given, **options: Unpack[SetOptions]
) -> SetResult:
    """Tune `workload` for each of `problems`, and return all results.

        results = await atune.tune_set(workload, atune.Problems(M=[1, 64, 4096], N=4096))
        print(results)

    Up to four problems per device are tuned at the same time, or two problems in total if there are few cores. Each
    problem is measured on a single device, or on all devices if there are fewer than two problems per device. Problems
    on the same device take turns in measuring. Candidates with the same code are compiled once. Each problem begins
    with the winners of the two nearest finished problems, and has its own default, final benchmark, winner and journal.

    If a problem has no winner, the other problems go on, and the result gives the reason. If every problem failed,
    raises the first error. If no problem has a winner, raises `NoWinner`. Otherwise raises like `tune`. A cancellation
    keeps all journals.

    Parameters
    ----------
    workload
        A `Workload`, or ``"FILE.py:NAME"``. A problem's arguments replace the workload's arguments of the same names.
    problems
        `Problems`, or a list of dictionaries.
    {options}
    """
    make_plan = partial(RunPlan.of, "tune_set", options, folder=True)
    plan = await anyio.to_thread.run_sync(make_plan, abandon_on_cancel=True)
    if plan.machine is not None:
        raise UsageError("tune_set: machine= has a single workload: leave machine= out, or tune each problem by itself")
    chosen = problems if isinstance(problems, Problems) else Problems(problems)
    workload, name = named_work(workload)
    folder = ResultCache().new_path(name).with_suffix("") if plan.journal is None else plan.journal
    return await _SetRun(workload, chosen, plan, folder, options.get("warm")).all()


@documents(SetOptions)
def run_set(workload: Workload | FileRef | str, problems: Problems | Given, **options: Unpack[SetOptions]) -> SetResult:
    """Tune a set like `tune_set`, but block until the set ends. `run_set` also works inside a running event loop.

    Parameters
    ----------
    workload, problems
        As for `tune_set`.
    {options}
    """
    return run_blocking(tune_set, workload, problems, **options)


class _SetRun:
    """The runs of a set: one tuning for each problem. A limiter restricts the number of simultaneous tunings."""

    def __init__(
        self, workload: Workload | FileRef, problems: Problems, plan: RunPlan, folder: Path, warm: Warm
    ) -> None:
        self._workload, self._problems, self._folder, self._warm = workload, problems, folder, warm
        self._every_s, self._plan = _progress_every_s(plan), replace(plan, progress=False, log=False)
        self._listeners = Listeners(plan.on_event, plan.log)
        self._next_line = time.monotonic() + (min(self._every_s, INTERVAL_S) if self._every_s < math.inf else math.inf)
        self._fit = workers_that_fit(int(LOAD * (len(usable_cores()) - 1)), usable_memory_bytes())
        self._at_once = 1
        self._devices = set[str]()
        self._shared: Shared | None = None
        """The processes that the runs share, or None if the runs use a cluster."""
        self._rows: dict[int, TunedProblem] = {}
        self._errors: dict[int, AtuneError] = {}
        self._journals: list[Path] = []
        self._of: tuple[str, str] | None = None
        """The name of the workload and the fingerprint of its kernel, as in the headers of the folder's journals."""

    async def all(self) -> SetResult:
        """Lock the folder against other runs, and tune every problem."""
        had = [*listed(self._folder).values()] if is_set(self._folder) else []
        lock, self._journals = await opened_aside(lambda: open_set_folder(self._folder, self._problems)[::-1])
        try:
            with lock, self._listeners.ending():
                await self._tune()
                return self._joined()
        except BaseException as error:
            if not had or isinstance(error, AtuneError):
                with suppress(OSError, UsageError):  # a full disk must not hide the error
                    forget_added(self._folder, had)
            ended = error is self._listeners.raised or isinstance(error, anyio.get_cancelled_exc_class())
            if ended and journals_in(self._folder):
                kept = f"the measurements are kept in {shlex.quote(str(self._folder))}; continue with journal="
                error.add_note(f"tuning interrupted; {kept}")
            raise

    async def _tune(self) -> None:
        self._print(f"[0/{len(self._problems)}] journals in {self._folder}")
        if (header := header_of_set(self._folder)) is not None:
            self._same_work(header)
        async with AsyncExitStack() as stack:
            if self._plan.cluster is None:
                shared = await stack.enter_async_context(shared_processes())
                self._devices = await self._found_devices()  # while the fork server imports
                apart = len(self._problems) >= PROBLEMS_EACH * len(self._devices)
                places = len(self._devices) if apart else 1
                self._at_once = self._most_at_once(places)
                self._shared = replace(shared, at_once=math.ceil(self._at_once / places), apart=apart)
            free = anyio.CapacityLimiter(self._at_once)
            try:
                async with anyio.create_task_group() as tasks:
                    for index in range(len(self._problems)):
                        tasks.start_soon(self._one, index, free)
            except BaseExceptionGroup as group:
                raise unwrapped(group) from None

    def _joined(self) -> SetResult:
        """Join the problems' results. Raises `NoWinner` if there is no winner, or the first error if all failed."""
        result = SetResult([self._rows[i] for i in range(len(self._problems))], self._folder, self._workload)
        if len(self._errors) == len(result):
            raise self._errors[0]
        if not result.winners:
            tried = next(row.result for row in result if row.result is not None)
            raise NoWinner(f"none of {len(result)} problems has a winner\n{result}", tried)
        return result

    async def _found_devices(self) -> set[str]:
        find = partial(find_target, self._plan.target, self._plan.devices)
        with suppress(TargetError):
            return {device.id for device in (await anyio.to_thread.run_sync(find, abandon_on_cancel=True))[1]}
        return {""}  # the first run raises the error

    def _most_at_once(self, devices: int) -> int:
        """Return the number of problems to tune at the same time on this number of `devices`."""
        timed = self._plan.settings.budget.seconds is not None  # a wait for a device counts towards the limit
        most = 2 * devices if timed else max(2, min(AT_ONCE * devices, self._fit // WORKERS_EACH))
        return min(most, len(self._problems))

    async def _one(self, index: int, free: anyio.CapacityLimiter) -> None:
        result: Result | None = None
        async with free:  # in the order of the problems
            try:
                result = await self._on_devices(index)
            except NoWinner as error:
                result = error.result
            except AtuneError as error:
                if not isinstance(error, OF_ALL) or isinstance(error, UnknownArgument):
                    error.args = (f"{self._problems.places[index]}{error}",)
                if isinstance(error, OF_ALL):
                    raise
                self._errors[index] = error
            self._rows[index] = row = TunedProblem(self._problems[index], result, str(self._errors.get(index, "")))
        self._print(f"[{len(self._rows)}/{len(self._problems)}] {row_line(row)}")

    def _print(self, line: str) -> None:
        if (now := time.monotonic()) >= self._next_line:
            self._next_line = now + self._every_s
            Output(sys.stderr).write(f"{shown(line)}\n")

    async def _on_devices(self, index: int) -> Result:
        """Tune a problem. If its devices are lost, continue on other devices. Raises the same errors as `_tuned`."""
        while True:
            lost = set() if self._shared is None else {*self._shared.lost}
            try:
                return await self._tuned(index)
            except DevicesLost:
                if self._shared is None or not lost < self._shared.lost < self._devices:
                    raise

    async def _tuned(self, index: int) -> Result:
        """Start or continue the run of a problem. Raises like `tune`, or `JournalError` if the work differs."""
        problem, journal = self._problems[index], self._journals[index]
        fresh, scope = not journal.exists(), anyio.CancelScope()

        def heard(event: Event) -> None:
            if not self._same_work(event):
                scope.cancel()
            if isinstance(event, DeviceLost) and event.final and self._shared is not None:
                self._shared.lost.add(event.device)
            if self._every_s:
                self._print(f"[{len(self._rows)}/{len(self._problems)}] {problem} is being tuned")
            self._listeners.of = tuner.state, f"{self._folder.name}/{journal.name}"
            self._listeners(event)

        plan = replace(self._plan, journal=journal, on_event=heard, shared=self._shared)
        plan = plan.with_settings(compile=self._compile())
        if fresh and (nearest := self._nearest(problem)):
            plan = plan.with_settings(advise=adviser(self._warm, nearest))
        make = partial(Tuner.planned, self._workload.at(problem.arguments), plan)
        tuner = await anyio.to_thread.run_sync(make, abandon_on_cancel=True)
        try:
            with scope:
                async with tuner:
                    return await tuner.result()
        finally:  # needed even if the task of another problem raised first
            if fresh and scope.cancel_called:
                journal.unlink(missing_ok=True)  # other work's journal would keep the set from resuming
        assert self._of is not None
        raise JournalError(
            f"journal {self._folder}: the folder has problems of {self._of[0]}, but this is other work, or another "
            "version of the kernel: undo the change, or give another folder"
        )

    def _same_work(self, event: Event) -> bool:
        """Tell whether an event belongs to the same work as the folder's first journal."""
        if not isinstance(event, RunStarted):
            return True
        work = event.workload, event.kernel
        self._of = self._of or work
        return work[0] == self._of[0] and (work == self._of or "kernel" in self._plan.settings.accept)

    def _nearest(self, problem: Problem) -> list[Result]:
        """Return the results of the nearest problems that ended with a winner."""
        won = [(distance(row.problem.arguments, problem.arguments), n, row) for n, row in self._rows.items() if row.won]
        return [row.result for _, _, row in sorted(won, key=lambda each: each[:2])[:ADVISERS] if row.result is not None]

    def _compile(self) -> CompileSettings:
        """Return the compile settings of a run. Unless `workers` is given, the run gets a share of all workers."""
        settings = self._plan.settings.compile
        if settings.workers is not None or self._at_once == 1:
            return settings
        return msgspec.structs.replace(settings, workers=max(1, self._fit // self._at_once))


def _progress_every_s(plan: RunPlan) -> float:
    """Return the least number of seconds between two progress lines of a set, or infinity if no lines are printed."""
    listened = plan.on_event is not None or plan.log
    unasked = math.inf if listened else 0.0 if is_watched() else SELDOM_S
    return unasked if plan.progress is None else 0.0 if plan.progress else math.inf


def read_set(folder: str | os.PathLike[str]) -> SetResult:
    """Return the result in a set's folder, in the form that `tune_set` returns. Runs no code of the workload.

    Raises `UsageError` if the folder holds no set, and `JournalError` if a journal cannot be read.
    """
    return SetResult(tuned_problems(Path(folder)), Path(folder))


@documents(RunOptions)
async def resume_set(
    folder: str | os.PathLike[str], workload: Workload | FileRef | str | None = None, **options: Unpack[RunOptions]
) -> SetResult:
    """Continue the set in a folder with the settings of its journals, and return all results.

    Raises `UsageError` if the folder holds no set, or if no problem was begun. Otherwise raises like `tune_set`.

    Parameters
    ----------
    folder
        The folder that `tune_set` wrote.
    workload
        As for `tune_set`. By default, the file that the journals name is used.
    {options}
    """
    header = header_of_set(Path(folder))
    problems = Problems(listed(Path(folder)).values())
    if header is None:
        raise UsageError(f"{folder}: no problem was begun there: tune the set again")
    chosen = completed_by(header, known_options("resume_set", options))
    return await tune_set(workload or origin_of(header), problems, journal=folder, **chosen)
