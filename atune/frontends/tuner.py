"""The three ways to tune from Python: `await tune()`, blocking `run()`, and a `Tuner` with events."""

from __future__ import annotations

import importlib
import inspect
import os
import shlex
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Unpack

import anyio
import anyio.lowlevel
import anyio.to_thread
import msgspec

from atune.engine.engine import Engine
from atune.engine.interfaces import Machine
from atune.engine.run_state import Listener, Listeners, Recorder, opened_aside
from atune.engine.settings import EngineSettings, check_parts
from atune.errors import AtuneError, UsageError, WorkloadError, name_and_message, warn_caller
from atune.frontends.blocking import importing, of_the_machine, run_blocking, unwrapped, winning
from atune.frontends.run_options import TuneOptions, journal_at
from atune.frontends.warm_start import adviser, recaller
from atune.journal.events import Event, RunInterrupted, Warned
from atune.journal.result import Result, TuneResult
from atune.journal.state import State
from atune.journal.writer import Journal
from atune.model.device import DeviceInfo, Target, device_names
from atune.model.options import complete, documents, refuse_unknown
from atune.model.settings import BenchmarkSettings, Budget, CompileSettings
from atune.reporting.progress import Progress, is_watched
from atune.workers.artifact_store import ArtifactStore
from atune.workers.local_machine import LocalMachine, Shared
from atune.workers.messages import Discovery
from atune.workers.result_cache import Begun, ResultCache, run_name
from atune.workers.server import refuse_in_worker
from atune.workload.pickling import FileRef, parse_file_ref, ship
from atune.workload.workload import Workload, WorkloadSpec, describe, head, tuned_by_calls

if TYPE_CHECKING:
    from atune.reporting.log import Log


class EventHistory:
    """All events of a run so far. Readers wait for further events until the run ends."""

    def __init__(self) -> None:
        self.past: list[Event] = []
        self.kept = True
        """Whether events are kept for readers. A run may have hundreds of thousands of events."""
        self.ended = False
        self.more: anyio.Event | None = None
        """Set when the next event arrives or the run ends, and None before the run has started."""

    def publish(self, event: Event) -> None:
        """Add an event. This method is a listener of the recorder."""
        if self.kept:
            self.past.append(event)
            self.wake()

    def wake(self, *, ended: bool = False) -> None:
        """Wake readers in the run's event loop. `ended`: whether the run has ended, so that no event follows."""
        self.ended = ended
        before, self.more = self.more, anyio.Event()
        if before is not None:
            before.set()


class EventReader(AsyncIterator[Event]):
    """An iterator over a run's events. Unlike an async generator, the iterator does not have to be closed."""

    def __init__(self, history: EventHistory) -> None:
        self._history, self._position = history, 0

    async def __anext__(self) -> Event:
        await anyio.lowlevel.checkpoint()
        history = self._history
        while self._position == len(history.past):
            if history.more is None:
                raise UsageError(f"Tuner.events(): {NOT_ENTERED}")
            if history.ended:
                raise StopAsyncIteration
            await history.more.wait()
        self._position += 1
        return history.past[self._position - 1]


NOT_ENTERED = "enter the Tuner first, which starts the run: `async with Tuner(...) as tuner:`"


def find_target(target: str, devices: str | Sequence[str | int]) -> tuple[Target, list[DeviceInfo]]:
    """Return the target and the devices of a run on this machine. Queries NVML, and creates no CUDA context.

    Raises `UsageError` and `TargetError` like `tune`.
    """
    names = device_names(devices)
    key = msgspec.msgpack.encode((target, names, os.environ.get("CUDA_VISIBLE_DEVICES")))
    if key not in _targets:
        _targets[key] = importlib.import_module("atune.stages.gpu").find_devices(target, names)
    discovery = _targets[key]
    return discovery.target, list(discovery.devices)


_targets: dict[bytes, Discovery] = {}


def named_work(workload: object) -> tuple[Workload | FileRef, str]:
    """Return the workload to tune and its name. A string is parsed. Raises `UsageError` for any other value."""
    given = parse_file_ref(workload) if isinstance(workload, str) else workload
    if why := tuned_by_calls(given):
        raise UsageError(f"workload: this {why}")
    if not isinstance(given, (Workload, FileRef)):
        made = f"atune.Workload({workload.__name__}, space)" if inspect.isfunction(workload) else "an atune.Workload"
        raise UsageError(f"workload: give {made} or 'FILE.py:NAME', got {workload!r}")
    return given, given.name if isinstance(given, Workload) else Path(given.path).stem


@dataclass(frozen=True, kw_only=True)
class RunPlan:
    """The checked options of a run: settings, devices, files and listeners."""

    settings: EngineSettings
    target: str = "auto"
    devices: tuple[str, ...] = ("all",)
    cluster: str | None = None
    machine: Machine | None = None
    """The caller's own machine, which has its own workload."""
    journal: Path | None = None
    on_event: Listener | None = None
    log: Log | None = None
    progress: bool | None = None
    cache: ResultCache | None = None
    """The cache that keeps the run. If `journal` is None, this cache also keeps the journal. None: the user's cache."""
    begun: Begun | None = None
    """The journal that `ResultCache.begin` opened (or None), and the events that the journal already had."""
    shared: Shared | None = None
    """Processes that several simultaneous runs share, or None if the run starts its own processes."""

    @classmethod
    def of(cls, where: str, options: Mapping[str, object], *, folder: bool = False) -> RunPlan:
        """Return the plan for `options` of `tune`. Raises `UsageError`, which names `where`.

        `folder`: whether the option `journal` names a folder.
        """
        refuse_unknown(where, options, [*TuneOptions.__annotations__])
        given: TuneOptions = complete("", options, TuneOptions)  # type: ignore[assignment]
        settings = EngineSettings(
            budget=Budget.parse(given["budget"]),
            prior=given["prior"],
            compile=given["compile"] or CompileSettings(),
            benchmark=given["benchmark"] or BenchmarkSettings(),
            strategy=given["strategy"],
            seed=given["seed"],
            pipeline=given["pipeline"],
            accept=check_parts(given["accept"]),
            advise=adviser(given["warm"]),
            recall=recaller(given["cached"], given["on_miss"], unless_asked=given["machine"] is None),
        )
        return cls(
            settings=settings,
            target=given["target"],
            devices=device_names(given["devices"]) if given["machine"] is None else ("all",),
            cluster=given["cluster"],
            machine=given["machine"],
            journal=None if given["journal"] is None else journal_at(given["journal"], folder=folder),
            on_event=given["on_event"],
            log=given["log"],
            progress=given["progress"],
        )

    def with_settings(self, **changes: Any) -> RunPlan:
        return replace(self, settings=replace(self.settings, **changes))

    def machine_for(self, workload: Workload | FileRef) -> Machine:
        """Return the compilers and devices for `workload`, without starting them. Raises `UsageError`."""
        spec: WorkloadSpec | None = None
        if isinstance(workload, Workload):
            # A space that calls functions of the user's is listed by a process that can be killed.
            spec = (describe if workload.space.stands_at_once else head)(workload, workload.origin())
        reference = ship(workload) if isinstance(workload, Workload) else workload
        options: dict[str, Any] = {"spec": spec, "target": self.target, "devices": self.devices}
        options |= {"compile": self.settings.compile, "benchmark": self.settings.benchmark}
        if self.cluster is None:
            return LocalMachine(reference, shared=self.shared, **options)
        # Imported here, because it imports Ray, which takes seconds.
        from atune.workers.cluster.cluster_machine import ClusterMachine
        from atune.workers.cluster.ray_cluster import ray_agents

        return ClusterMachine(partial(ray_agents, address=self.cluster), reference, **options)


@documents(TuneOptions)
class Tuner:
    """A tuning run whose events you can read while it works.

        async with Tuner(workload) as tuner:
            async for event in tuner.events():
                ...
            result = await tuner.result()

    Entering the block starts the run. Leaving the block early cancels the run. Raises `UsageError` like `tune`.

    Parameters
    ----------
    workload
        A `Workload`, or ``"FILE.py:NAME"``, which only the workers load.
    {options}
    """

    def __init__(self, workload: Workload | FileRef | str | None = None, **options: Unpack[TuneOptions]) -> None:
        self._prepare(workload, RunPlan.of("Tuner", options))

    @classmethod
    def planned(cls, workload: Workload | FileRef | str | None, plan: RunPlan) -> Tuner:
        """Return a tuner that carries out `plan`."""
        tuner = cls.__new__(cls)
        tuner._prepare(workload, plan)
        return tuner

    def _prepare(self, workload: Workload | FileRef | str | None, plan: RunPlan) -> None:
        self._settings, self._begun = plan.settings, plan.begun
        self._workload: Workload | None = None
        self._cache: ResultCache | None = None
        """The cache that keeps the run, or None if the caller gave the machine."""
        self._default_journal: str | None = None
        """The name for a new journal in the cache, or None if a journal was given."""
        self._journal_path = plan.journal
        if plan.machine is None:
            refuse_in_worker()
            work, name = named_work(workload)
            self._workload = work if isinstance(work, Workload) else None
            self._machine: Machine = plan.machine_for(work)
            self._cache = plan.cache or ResultCache()
            self._default_journal = name if plan.journal is None and plan.begun is None else None
        else:
            self._machine = plan.machine
        if plan.begun is not None and plan.begun[0] is not None:
            self._journal_path = Path(plan.begun[0].path)
        self._listeners = Listeners(plan.on_event, plan.log)
        self._progress, self._seldom = plan.progress, False
        self._history = EventHistory()
        self._result: TuneResult | None = None
        self._error: BaseException | None = None
        self._recorder: Recorder | None = None
        self._engine: Engine | None = None
        self._stopped = self._entered = self._continued = False

    async def __aenter__(self) -> Tuner:
        if self._entered:
            raise UsageError("Tuner: this Tuner was entered before, and carries out a single run: make another Tuner")
        self._entered = True
        self._done = anyio.Event()
        self._history.wake()
        self._tasks = anyio.create_task_group()
        await self._tasks.__aenter__()
        self._tasks.start_soon(self._run)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        self._tasks.cancel_scope.cancel()
        try:
            return await self._tasks.__aexit__(kind, error, trace)
        except BaseExceptionGroup:
            if error is None:
                raise
            return False  # the body's own error, unchanged

    def events(self) -> AsyncIterator[Event]:
        """Iterate over all events of the run until it ends. Each call starts from the first event.

        In a resumed run, the events of earlier parts come first. A reader may stop at any time, and never delays the
        run.
        """
        return EventReader(self._history)

    async def result(self) -> TuneResult:
        """Wait until the run ends, and return the run's result. Raises like `tune`."""
        if not self._entered:
            raise UsageError(f"Tuner.result(): {NOT_ENTERED}")
        await self._done.wait()
        if self._error is not None:
            raise self._error
        assert self._result is not None
        return self._result

    def stop(self) -> None:
        """End the run early: finish the work in progress, then run the final benchmark."""
        self._stopped = True
        if self._engine is not None:
            self._engine.stop()

    @property
    def state(self) -> State | None:
        """The state of the run, folded from the recorded events, or None before the first event."""
        return None if self._recorder is None else self._recorder.state

    async def _alone(self) -> TuneResult:
        """Run, and return the result. Keep no events for readers, because the caller only waits for the result."""
        self._history.kept = False
        if self._progress is None and not self._listeners.asked:
            self._progress, self._seldom = True, not is_watched()
        try:
            async with self:
                return await self.result()
        except BaseException as error:
            ended = error is self._listeners.raised or isinstance(error, anyio.get_cancelled_exc_class())
            if ended and (state := self.state) is not None:
                path, count = self._journal_path, state.counts["measured"]
                kept = f"{count} candidates measured, but no journal kept"
                if path is not None and path.exists():  # an empty journal was removed
                    then = "to continue, tune again with journal=, or call the decorated kernel again"
                    then += ", or use atune resume" if state.header is not None and state.header.origin else ""
                    kept = f"{count} measurement{'s' * (count != 1)} kept in {shlex.quote(str(path))}; {then}"
                error.add_note(f"tuning interrupted; {kept}")
            raise

    async def _run(self) -> None:
        made: Result | None = None
        patience_s = float("inf")
        try:
            with self._listeners.ending():
                if self._progress:
                    with Progress(budget=self._settings.budget, since=time.time(), seldom=self._seldom) as progress:
                        self._tasks.start_soon(_tick, progress)
                        await self._record((self._listeners, progress.on_event))
                else:
                    await self._record((self._listeners,))
            assert self._recorder is not None and self._engine is not None, "_record has made them"
            path, recalled = self._journal_path and str(self._journal_path), bool(self._engine.recalled)
            made = Result.of(self._recorder.state, path, replayed=self._continued or recalled)
            result = winning(made)
            await self._check_kernel(result)
            self._result = result
            self._result.cache_hit = recalled
        except BaseException as error:
            heard = error is self._listeners.raised
            self._error = of_the_machine(error) if isinstance(error, OSError) and not heard else error
            if not (heard or isinstance(error, Exception)):
                self._error = AtuneError("the run was cancelled; its journal (if there is one) has the measurements")
                patience_s = 0.3
                raise
        finally:
            with anyio.move_on_after(patience_s, shield=True):
                await self._keep_in_cache(made)
            self._done.set()
            self._history.wake(ended=True)

    async def _check_kernel(self, result: TuneResult) -> None:
        """Raise `WorkloadError` if workers loaded another version of the workload, and the winner's kernel differs."""
        work, best, digest = self._workload, result.best, ""
        differs = self._machine.workers.differs if isinstance(self._machine, LocalMachine) else ""
        if not differs or work is None or self._recorder is None:
            return
        digest_here = importlib.import_module("atune.stages.lowering").digest_here
        ask = partial(digest_here, work, best.config, result.header.target, self._settings.compile)
        with suppress(Exception):  # if the program's kernel cannot be elaborated, the warning remains
            digest = await anyio.to_thread.run_sync(ask, abandon_on_cancel=True)
        if digest != (recorded := self._recorder.state.entry(best.index).ir_digest) and digest and recorded:
            raise WorkloadError(f"Workload {work.name}: the winner is not the kernel of this program: {differs}")

    async def _keep_in_cache(self, made: Result | None) -> None:
        """Keep the run's journal in the result cache, under the run's key, no matter how the run ended."""
        path, state, cache = self._journal_path, self.state, self._cache
        answered = "" if self._engine is None else self._engine.recalled
        useless = isinstance(self._error, UsageError) and not (self._continued or (state and state.counts["measured"]))
        if path is not None and cache is not None and str(path) != answered:
            try:
                if useless or not path.exists():  # a journal without an event was removed
                    if made is not None:
                        what = f"the journal {path} was removed during the run, or could not be written"
                        warn_caller(f"{what}: the result is valid, but it is not saved", RuntimeWarning)
                    await anyio.to_thread.run_sync(cache.discard, path, abandon_on_cancel=True)
                elif state is not None and state.header:
                    await anyio.to_thread.run_sync(cache.add, path, abandon_on_cancel=True)
            except Exception as error:  # the run succeeds without its entry in the cache
                if isinstance(error, Warning):  # if the program turns warnings into errors
                    self._error = self._error or error
                else:
                    with suppress(Warning):
                        warn_caller(f"the run is not in the result cache: {name_and_message(error)}", RuntimeWarning)

    async def _record(self, listeners: tuple[Listener, ...]) -> None:
        journal: Journal | None = None
        past: Sequence[Event] = ()
        if self._begun is not None:
            journal, past = self._begun
        elif self._journal_path is not None:
            journal, past = await opened_aside(partial(Journal.start, self._journal_path))
        self._continued = bool(past)
        kept: Journal | None = None
        if self._default_journal is not None and self._cache is not None:
            opening = partial(self._cache.open_new, self._default_journal)
            kept, _ = await opened_aside(lambda: (opening(), []))
        if kept is not None:
            self._journal_path = Path(kept.path)
            listeners = *listeners, partial(self._keep, kept)
        self._recorder = recorder = Recorder(journal, (self._history.publish, *listeners))
        try:
            if self._cache is not None and self._journal_path is not None and self._begun is None:
                await anyio.to_thread.run_sync(self._cache.note, self._journal_path, abandon_on_cancel=True)
            await recorder.go_on(past)
            self._listeners.of = recorder.state, "" if self._journal_path is None else run_name(self._journal_path)
            if self._cache is not None and self._journal_path is not None:
                self._settings = replace(self._settings, journal=os.path.abspath(self._journal_path))
            self._engine = engine = Engine(self._machine, recorder, self._settings, keep=ArtifactStore().keep)
            if self._stopped:
                engine.stop()
            await engine.run()
        except BaseException as error:
            cause = unwrapped(error) if isinstance(error, BaseExceptionGroup) else error
            heard, cancelled = self._listeners.raised, isinstance(cause, anyio.get_cancelled_exc_class())
            reason = "cancelled" if cancelled and heard is None else name_and_message(heard or cause)
            await _end_journal(recorder, reason)
            if cause is error:
                raise
            raise cause from None
        finally:
            for opened in (journal, kept):
                if opened is not None:
                    opened.close()
        if engine.recalled and kept is not None:  # the new journal only repeats the recalled journal
            self._journal_path = Path(engine.recalled)
            await anyio.to_thread.run_sync(self._keep_recalled, kept.path, engine.recalled)

    def _keep(self, journal: Journal, event: Event) -> None:
        """Write an event into the default journal. If writing fails, warn, and let the run go on."""
        recorder = self._recorder
        assert recorder is not None, "the recorder emitted the event"
        try:
            journal.append(event)
        except Exception as error:
            del recorder.listeners[-1]
            recorder.emit(Warned, message=f"the run goes on without its journal: {name_and_message(error)}")

    def _keep_recalled(self, copy: str, journal: str) -> None:
        """Discard `copy`, a copy of the earlier run's `journal`, and make `journal` the newest run."""
        assert self._cache is not None, "the cache made the copy"
        self._cache.discard(copy)
        with suppress(OSError):
            os.utime(journal)


async def _tick(progress: Progress) -> None:
    while True:
        await anyio.sleep(1)
        progress.tick()


async def _end_journal(recorder: Recorder, reason: str) -> None:
    """Record that the run ended early, even if the task was cancelled. A broken journal stays unchanged."""
    if not recorder.emitted or recorder.state.finished is not None:
        return
    with suppress(Exception), anyio.move_on_after(0.3, shield=True):
        recorder.emit(RunInterrupted, wall_s=round(recorder.part_s, 4), reason=reason[:500])
        await recorder.sync()


@documents(TuneOptions)
async def tune(workload: Workload | FileRef | str | None = None, **options: Unpack[TuneOptions]) -> TuneResult:
    """Tune `workload` and return the result.

    Raises `UsageError` or a subclass for invalid arguments. For an unknown option, the error is also a TypeError.
    Raises `NoWinner` if no candidate worked, and `DevicesLost` if no device is left. A cancellation kills every worker
    and compiler within a second. The journal keeps all measurements.

    Parameters
    ----------
    workload
        A `Workload`, or ``"FILE.py:NAME"``, which only the workers load.
    {options}
    """
    return await _finished(lambda: Tuner.planned(workload, RunPlan.of("tune", options)))


async def tune_planned(workload: Workload, plan: RunPlan) -> TuneResult:
    return await _finished(partial(Tuner.planned, workload, plan))


async def _finished(make: Callable[[], Tuner]) -> TuneResult:
    """Make a tuner in a thread, because fingerprinting and pickling may take long, and return the tuner's result."""
    tuner = make() if importing() else await anyio.to_thread.run_sync(make, abandon_on_cancel=True)
    return await tuner._alone()


@documents(TuneOptions)
def run(workload: Workload | FileRef | str | None = None, **options: Unpack[TuneOptions]) -> TuneResult:
    """Tune like `tune`, but block until the run ends. Also works inside a running event loop, such as a notebook's.

    KeyboardInterrupt ends the run and kills every worker, even if `run` is called in a thread. The exception's message
    names the journal. Raises like `tune`.

    Parameters
    ----------
    workload
        A `Workload`, or ``"FILE.py:NAME"``, which only the workers load.
    {options}
    """
    # Made in this thread: if it is still importing the workload's module, another thread's pickling would wait for it.
    return run_blocking(Tuner.planned(workload, RunPlan.of("run", options))._alone)
