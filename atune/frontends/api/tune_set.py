"""A set of problems: a few runs at a time, which share the fork server, the cores and the devices; and its result."""

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
from atune.engine.search.strategies import AUTO
from atune.errors import (
    ArgumentMissing,
    AtuneError,
    DevicesLost,
    JournalError,
    MachineError,
    NoSuchWorkload,
    NoWinner,
    UnknownArgument,
    UsageError,
)
from atune.frontends.api.blocking import run_blocking, unwrapped
from atune.frontends.api.options import RunOptions, SetOptions, completed, named, progress_every_s
from atune.frontends.api.problems import Given, Problems
from atune.frontends.api.ranking import Group, groups_of, wider
from atune.frontends.api.resume import completed_by, origin_of
from atune.frontends.api.tuner import discover, named_work, tuner_on
from atune.journal.events import Event, RunStarted
from atune.journal.reader import replay
from atune.journal.result import Result
from atune.journal.set_folder import (
    TunedProblem,
    forget_added,
    has_begun,
    header_of_set,
    is_begun,
    is_set,
    listed,
    open_set_folder,
    rankings_in,
    run_header,
    tuned_problems,
)
from atune.journal.state import State
from atune.journal.writer import write_output
from atune.model.candidate import ADVISED, Advice, Problem, config_key, describe_config, distance
from atune.model.options import checked, documents
from atune.model.settings import BenchmarkSettings, Budget, CompileSettings
from atune.model.space import Space
from atune.reporting.progress import INTERVAL_S
from atune.reporting.screen import Output, plain, printed, shown
from atune.reporting.set_table import row_line, set_lines, set_page
from atune.reporting.sets import MAX_REGRET, Cover, NearestRule, RegretMatrix, cover, dispatch_rule, regret_matrix
from atune.workers.local.machine import Shared, shared_processes
from atune.workers.storage.result_cache import ResultCache
from atune.workers.system.resources import usable_cores, usable_memory_bytes, workers_that_fit
from atune.workload.pickling import FileRef
from atune.workload.workload import Workload

AT_ONCE, WORKERS_EACH = 4, 5
"""Most problems at the same time, and the fewest compile workers of each where these are more than two.
No device then waits for the last compile of one problem, and several candidates share a library. On an H100 with 16
cores a set of 28 problems took 0.81 times as long as with two."""
RANKED = 2
"""How many times as many at the same time where they are ranked together: each has only a few candidates, and waits for
processes, compilers and the device in turn."""
LOAD = 1.5
"""Compile workers of all problems under way, for each core: a problem often waits for its last one. On an H200 with 16
cores a set of 11 problems took 0.77 times as long as with one for each core."""
OF_ALL = (ArgumentMissing, NoSuchWorkload, JournalError, MachineError, DevicesLost)
"""Errors of one problem that end the whole set."""
ADVISERS = 4
"""Nearest problems whose results a new problem begins with."""


class SetResult(Sequence[TunedProblem]):
    """The problems of a set with their results, in the set's order.

    ``result[{"M": 128, "N": 4096}]`` is one problem's `Result`; ``result[0]`` is a row. `folder` holds the journals.
    ``str(result)`` is the table.
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
        """Their results."""
        return [row.result for row in self.winners if row.result is not None]

    def save_bundle(self, folder: str | os.PathLike[str]) -> str:
        """Write the winners as a bundle: `atune.results.save_bundle` of `results`, and of what ranked for them."""
        from atune.frontends.api.save_bundle import rankings_of, save_bundle

        return save_bundle(folder, [*self.results, *rankings_of(self.folder)])

    def report(self, path: str | os.PathLike[str]) -> None:
        """Write the set's page, that of ``atune report``, to the file `path`, in place of an earlier one.

        Raises `UsageError` where `path` cannot be written.
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
        """Return what a notebook shows of it: the table."""
        return f"<pre>{escape(str(self))}</pre>"

    def __repr__(self) -> str:
        return f"SetResult({len(self)} problems, {len(self.winners)} with a winner)"

    def regret_matrix(self) -> RegretMatrix:
        """Return how much slower each winner and finalist is than the winner, by problem with a winner."""
        return regret_matrix(self.results)

    def cover(self, max_regret: float = MAX_REGRET) -> Cover:
        """Return few configurations that serve all problems with a winner, by their weights; see `atune.sets.cover`."""
        return cover(self.regret_matrix(), max_regret, self._weights())

    def rule(self, space: Space | None = None) -> NearestRule:
        """Return the rule that chooses a configuration for new problems; see `atune.sets.dispatch_rule`.

        `space`: that of the workload, where the set was tuned by the name of a file, and its constraints take sizes.
        """
        return replace(dispatch_rule(self.regret_matrix(), space or self._space, self._weights()), fixed=self._fixed)

    def _weights(self) -> list[float]:
        return [row.problem.weight for row in self.winners]


@documents(SetOptions)
async def tune_set(
    workload: Workload | FileRef | str, problems: Problems | Given, **options: Unpack[SetOptions]
) -> SetResult:
    """Tune `workload` for each of `problems`, and return all results.

    Up to four problems are tuned at a time, or two where cores are few. Each has inputs of its own on the devices, and
    they measure in turn. Candidates with the same code are compiled once. Each problem begins with what was fast in the
    nearest ones that have ended. It has its own default, final, winner and journal.

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
    given = named("tune_set", options, SetOptions)
    folder, symbolic = given.pop("journal", None), given.pop("symbolic", None)
    completed("tune_set", given)
    checked("tune_set", {"journal": folder, "symbolic": symbolic}, SetOptions)
    if given.get("machine") is not None:
        raise UsageError("tune_set: machine= holds one workload: leave it out, or tune each problem by itself")
    chosen = problems if isinstance(problems, Problems) else Problems(problems)
    workload, name = named_work(workload)
    folder = Path(ResultCache().new_path(name).with_suffix("") if folder is None else folder)
    running = _SetRun(workload, chosen, given, folder, symbolic)
    try:
        return await running.all()
    except BaseException as error:
        ended = error is running.listeners.raised or isinstance(error, anyio.get_cancelled_exc_class())
        if ended and has_begun(folder):
            kept = f"what was measured is kept in {shlex.quote(str(folder))}; journal= continues it"
            error.add_note(f"tuning interrupted; {kept}")
        raise


@documents(SetOptions)
def run_set(workload: Workload | FileRef | str, problems: Problems | Given, **options: Unpack[SetOptions]) -> SetResult:
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
        workload: Workload | FileRef,
        problems: Problems,
        options: dict[str, Any],
        folder: Path,
        symbolic: bool | None,
    ) -> None:
        self._workload, self._problems, self._folder = workload, problems, folder
        self._every_s, self._options = progress_every_s(options), {**options, "progress": False, "log": False}
        self.listeners = Listeners(options.get("on_event"), options.get("log"))
        self._benchmark: BenchmarkSettings = options.get("benchmark") or BenchmarkSettings()
        self._next_line = time.monotonic() + (min(self._every_s, INTERVAL_S) if self._every_s < math.inf else math.inf)
        self._fit = workers_that_fit(int(LOAD * (len(usable_cores()) - 1)), usable_memory_bytes())
        self._free: anyio.CapacityLimiter
        """As many problems as are tuned at the same time."""
        self._shared: Shared | None = None
        """The processes that the runs share; None on a cluster."""
        self._rows: dict[int, TunedProblem] = {}
        self._errors: dict[int, AtuneError] = {}
        self._journals: list[Path] = []
        self._symbolic = symbolic
        self._groups: dict[str, Group] = {}
        """The group of each problem that is ranked with others, by its key."""
        self._of: tuple[str, str] | None = None
        """The workload and the version of its kernel that the folder's journals are of, as their headers have them."""

    async def all(self) -> SetResult:
        """Tune every problem."""
        had = [*listed(self._folder).values()] if is_set(self._folder) else []
        lock, self._journals = await opened_aside(lambda: open_set_folder(self._folder, self._problems)[::-1])
        try:
            with lock, self.listeners.ending():
                return await self._all()
        except BaseException as error:
            begun = [path for path in self._journals if path.exists()]
            with suppress(AtuneError, OSError):  # the first error counts
                if not had and isinstance(error, UsageError) and not any(replay(path).measured for path in begun):
                    for path in begun:
                        ResultCache().discard(path)
            if not had or isinstance(error, AtuneError):
                with suppress(OSError, UsageError):  # a full disk costs only that
                    forget_added(self._folder, had)
            raise

    async def _all(self) -> SetResult:
        self._print(f"[0/{len(self._problems)}] journals in {self._folder}")
        if (header := header_of_set(self._folder)) is not None:
            self._same_work(header)
        groups = await anyio.to_thread.run_sync(self._grouped, abandon_on_cancel=True)
        self._groups = {key: group for group in groups for key in group.keys}
        at_once = self._most_at_once()
        self._free = anyio.CapacityLimiter(at_once)
        async with AsyncExitStack() as stack:
            if not self._options.get("cluster"):
                self._shared = await stack.enter_async_context(shared_processes(at_once=at_once))
            try:
                async with anyio.create_task_group() as tasks:
                    for group in groups:
                        tasks.start_soon(self._rank, group, min(at_once, len(groups)))
                    for index in range(len(self._problems)):
                        tasks.start_soon(self._one, index)
            except BaseExceptionGroup as group:
                raise unwrapped(group) from None
        found = SetResult([self._rows[i] for i in range(len(self._problems))], self._folder, self._workload)
        if len(self._errors) == len(found):
            raise self._errors[0]
        if not found.winners:
            tried = next(row.result for row in found if row.result is not None)
            raise NoWinner(f"no problem of {len(found)} has a winner\n{found}", tried)
        return found

    def _most_at_once(self) -> int:
        if self._options.get("cluster"):
            return 1
        timed = Budget.parse(self._options.get("budget")).seconds is not None  # they count while it waits for a device
        most = 2 if timed else max(2, min(AT_ONCE, self._fit // WORKERS_EACH))
        wide = self._groups and not timed and self._benchmark.memory_limit is None  # each has a share of that
        return min(RANKED * most if wide else most, len(self._problems))

    def _grouped(self) -> list[Group]:
        """Return the groups of problems that are ranked together. Raises `TargetError` without the target's devices."""
        bits = self._benchmark.same_bits  # other code may have other ones
        if self._symbolic is False or self._options.get("cluster") or bits:
            return []
        if self._symbolic is None and not rankings_in(self._folder):
            target, _ = discover(self._options.get("target", "auto"), self._options.get("devices", "all"))
            if target.kind != "cuda":  # a compiler for the CPU makes other code where sizes are unknown
                return []
        new = [self._problems[n] for n, path in enumerate(self._journals) if not path.exists()]
        return groups_of(self._folder, new)

    async def _rank(self, group: Group, groups: int) -> None:
        """Rank for the problems of one of `groups` at a time. Where that fails, each is tuned as if it were alone."""
        try:
            async with self._free:
                if not is_begun(group.journal):
                    group.journal.unlink(missing_ok=True)  # a killed run left no whole line
                budget, compile = Budget.parse(self._options.get("budget")), self._compile(groups)
                each = {"budget": budget, "compile": self._options.get("compile") or CompileSettings()}
                each["strategy"] = getattr(strategy := self._options.get("strategy") or AUTO, "name", strategy)
                what = f"{group} are being ranked"
                changes = {"budget": wider(budget), "compile": compile, "each": each}
                _, state = await self._run(group.journal, group.arguments, what, changes=changes)
                group.learn(state)
        except AtuneError as error:
            if isinstance(error, (JournalError, MachineError, DevicesLost)):
                raise
        finally:
            group.ended.set()

    async def _one(self, index: int) -> None:
        result: Result | None = None
        if (group := self._groups.get(self._problems[index].key)) is not None:
            await group.ended.wait()
        async with self._free:  # in the order of the problems
            try:
                result = await self._tuned(index)
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

    async def _tuned(self, index: int) -> Result:
        problem, journal = self._problems[index], self._journals[index]
        group, fresh = self._groups.get(problem.key), not journal.exists()
        only = None if group is None else group.advice.get(problem.key)
        nearest = self._nearest(problem) if fresh and only is None else ()
        begun = None if fresh else run_header(journal)
        again = {"strategy": ADVISED} if begun is not None and begun.strategy == ADVISED else {}
        what = f"{problem} is being tuned"
        return (await self._run(journal, problem.arguments, what, nearest, only, again))[0]

    async def _run(
        self,
        journal: Path,
        arguments: Mapping[str, Any],
        what: str,
        nearest: Sequence[Result] = (),
        only: Advice | None = None,
        changes: Mapping[str, Any] | None = None,
    ) -> tuple[Result, State]:
        """Do what is left of one journal's run, with `changes` of the options.

        Raises what `tune` raises, and `JournalError` for other work.
        """
        fresh, scope = not journal.exists(), anyio.CancelScope()

        def heard(event: Event) -> None:
            if not self._same_work(event):
                scope.cancel()
            if self._every_s:
                self._print(f"[{len(self._rows)}/{len(self._problems)}] {what}")
            self.listeners.of = tuner.state, f"{self._folder.name}/{journal.name}"
            self.listeners(event)

        mine = {"compile": self._compile(int(self._free.total_tokens)), "journal": journal, "on_event": heard}
        options = {**self._options, **mine, **(changes or {})}
        make = partial(tuner_on, self._shared, nearest, only, self._at(arguments), **options)
        tuner = await anyio.to_thread.run_sync(make, abandon_on_cancel=True)
        try:
            with scope:
                async with tuner:
                    result = await tuner.result()
                    assert tuner.state is not None
                    return result, tuner.state
        finally:  # also if another problem's task found it first
            if fresh and scope.cancel_called:
                journal.unlink(missing_ok=True)  # so that the set can still be resumed
        assert self._of is not None
        raise JournalError(
            f"journal {self._folder}: it has problems of {self._of[0]}, and this is other work, or another version "
            "of the kernel: undo the change, or give another folder"
        )

    def _same_work(self, event: Event) -> bool:
        """Tell whether an event is of the work that the folder's first journal is of."""
        if not isinstance(event, RunStarted):
            return True
        found = event.workload, event.kernel
        self._of = self._of or found
        return found[0] == self._of[0] and (found == self._of or "kernel" in self._options.get("accept", ()))

    def _at(self, arguments: Mapping[str, Any]) -> Workload | FileRef:
        if isinstance(self._workload, Workload):
            return self._workload.at(arguments)
        return msgspec.structs.replace(self._workload, arguments=dict(arguments))

    def _nearest(self, problem: Problem) -> list[Result]:
        """Return the results of the nearest problems that have ended with a winner."""
        won = [(distance(row.problem.arguments, problem.arguments), n, row) for n, row in self._rows.items() if row.won]
        return [row.result for _, _, row in sorted(won, key=lambda one: one[:2])[:ADVISERS] if row.result is not None]

    def _compile(self, at_once: int) -> CompileSettings:
        """Return the settings for one of `at_once` runs that share the cores, unless the caller decided."""
        settings: CompileSettings = self._options.get("compile") or CompileSettings()
        if settings.workers is not None or self._free.total_tokens == 1:
            return settings
        return msgspec.structs.replace(settings, workers=max(1, self._fit // at_once))


def read_set(folder: str | os.PathLike[str]) -> SetResult:
    """Return what a set's folder has, as `tune_set` returned it. Runs no code.

    Raises `UsageError` if it is no such folder, and `JournalError` for a journal that cannot be read.
    """
    return SetResult(tuned_problems(Path(folder)), Path(folder))


@documents(RunOptions)
async def resume_set(
    folder: str | os.PathLike[str], workload: Workload | FileRef | str | None = None, **options: Unpack[RunOptions]
) -> SetResult:
    """Continue the set of a folder with the settings of its journals, and return all results.

    Raises `UsageError` if it is no such folder or nothing was begun there, and else what `tune_set` raises.

    Parameters
    ----------
    folder
        The folder that `tune_set` wrote.
    workload
        As for `tune_set`. None takes the file that the journals name.
    {options}
    """
    header = header_of_set(Path(folder))
    problems = Problems(listed(Path(folder)).values())
    if header is None:
        raise UsageError(f"{folder}: nothing was begun there: tune the set again")
    if isinstance(each := header.settings.get("each"), dict):  # as the caller gave them, where it ranks
        strategy = each.get("strategy", header.strategy)
        header = msgspec.structs.replace(header, settings={**header.settings, **each}, strategy=strategy)
    chosen = completed_by(header, named("resume_set", options, RunOptions))
    if not rankings_in(Path(folder)):  # the set ranks nothing, or its rankings were removed
        chosen |= {"symbolic": False, "strategy": None if header.strategy == ADVISED else header.strategy}
    return await tune_set(workload or origin_of(header), problems, journal=folder, **chosen)
