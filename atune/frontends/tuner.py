"""The three ways to tune from Python: `await tune()`, blocking `run()`, and the `Tuner` handle with its events."""

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
from atune.errors import AtuneError, UsageError, name_and_message, warn_caller
from atune.frontends.blocking import importing, of_the_machine, run_blocking, unwrapped, winning
from atune.frontends.run_options import TuneOptions
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
    """All events of a run so far. Readers wait for more until the run has ended."""

    def __init__(self) -> None:
        self.past: list[Event] = []
        self.kept = True
        """False keeps nothing, for a run whose events nobody can read: there may be hundreds of thousands."""
        self.ended = False
        self.more: anyio.Event | None = None
        """Set with the next event, and at the end; None until the run has started."""

    def publish(self, event: Event) -> None:
        """Add an event, as a listener of the recorder."""
        if self.kept:
            self.past.append(event)
            self.wake()

    def wake(self, *, ended: bool = False) -> None:
        """Let readers look again, in the run's event loop; `ended`: after the last event."""
        self.ended = ended
        before, self.more = self.more, anyio.Event()
        if before is not None:
            before.set()


class EventReader(AsyncIterator[Event]):
    """One reader's place in a run's events. An async generator would need closing when its reader leaves."""

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


NOT_ENTERED = "the run starts on entering: `async with Tuner(...) as tuner:`"


def find_target(target: str, devices: str | Sequence[str | int]) -> tuple[Target, list[DeviceInfo]]:
    """Return the target and the devices of a run on this machine. Asks NVML, and makes no CUDA context.

    Raises `UsageError` and `TargetError` like `tune`.
    """
    names = device_names(devices)
    asked = msgspec.msgpack.encode((target, names, os.environ.get("CUDA_VISIBLE_DEVICES")))
    if asked not in _targets:
        _targets[asked] = importlib.import_module("atune.stages.gpu").find_devices(target, names)
    found = _targets[asked]
    return found.target, list(found.devices)


_targets: dict[bytes, Discovery] = {}


def named_work(workload: object) -> tuple[Workload | FileRef, str]:
    """Return what is to be tuned, as it was given or parsed, and its name. Raises `UsageError` for anything else."""
    given = parse_file_ref(workload) if isinstance(workload, str) else workload
    if why := tuned_by_calls(given):
        raise UsageError(f"workload: this {why}")
    if not isinstance(given, (Workload, FileRef)):
        made = f"atune.Workload({workload.__name__}, space)" if inspect.isfunction(workload) else "an atune.Workload"
        raise UsageError(f"workload: give {made} or 'FILE.py:NAME', got {workload!r}")
    return given, given.name if isinstance(given, Workload) else Path(given.path).stem


@dataclass(frozen=True, kw_only=True)
class RunPlan:
    """What to do with a workload, where, and who hears of it: the options of a run, checked, as one value."""

    settings: EngineSettings
    target: str = "auto"
    devices: tuple[str, ...] = ("all",)
    cluster: str | None = None
    machine: Machine | None = None
    """The caller's own machine, which has its workload."""
    journal: Path | None = None
    on_event: Listener | None = None
    log: Log | None = None
    progress: bool | None = None
    cache: ResultCache | None = None
    """Where the run is found again, and its journal lies if nobody gave one; None for the user's."""
    begun: Begun | None = None
    """The open journal that `ResultCache.begin` returned, with its events; its folder may lack one."""
    shared: Shared | None = None
    """The processes of runs that take place at the same time; None for some of this run's own."""

    @classmethod
    def of(cls, where: str, options: Mapping[str, object]) -> RunPlan:
        """Return the plan that `options` of `tune` ask for. Raises `UsageError`, which names `where`."""
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
            journal=None if given["journal"] is None else Path(given["journal"]),
            on_event=given["on_event"],
            log=given["log"],
            progress=given["progress"],
        )

    def with_settings(self, **changes: Any) -> RunPlan:
        """Return the plan with `changes` of its settings."""
        return replace(self, settings=replace(self.settings, **changes))

    def machine_for(self, workload: Workload | FileRef) -> Machine:
        """Return the compilers and devices for `workload`; nothing is started yet. Raises `UsageError`."""
        spec: WorkloadSpec | None = None
        if isinstance(workload, Workload):
            # Where the space asks functions of the user's, a process does that can be ended.
            spec = (describe if workload.space.stands_at_once else head)(workload, workload.origin())
        reference = ship(workload) if isinstance(workload, Workload) else workload
        options: dict[str, Any] = {"spec": spec, "target": self.target, "devices": self.devices}
        options |= {"compile": self.settings.compile, "benchmark": self.settings.benchmark}
        if self.cluster is None:
            return LocalMachine(reference, shared=self.shared, **options)
        # Ray is imported with it.
        from atune.workers.cluster.cluster_machine import ClusterMachine
        from atune.workers.cluster.ray_cluster import ray_agents

        return ClusterMachine(partial(ray_agents, address=self.cluster), reference, **options)


@documents(TuneOptions)
class Tuner:
    """One tuning run as a handle.

        async with Tuner(workload) as tuner:
            async for event in tuner.events():
                ...
            result = await tuner.result()

    The run starts on entering. Leaving before its end cancels it. Raises `UsageError` for the same mistakes as `tune`.

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
        """Return the tuner that does what `plan` says."""
        tuner = cls.__new__(cls)
        tuner._prepare(workload, plan)
        return tuner

    def _prepare(self, workload: Workload | FileRef | str | None, plan: RunPlan) -> None:
        self._settings, self._begun = plan.settings, plan.begun
        self._cache: ResultCache | None = None
        """Where the run is found again; None for a machine of the caller's own."""
        self._default_journal: str | None = None
        """The name of the journal that is made in the cache; None where there is one."""
        self._journal_path = plan.journal
        if plan.machine is None:
            refuse_in_worker()
            work, name = named_work(workload)
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
            raise UsageError("Tuner: it has been entered before, and is one run: make another for another run")
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
        """Iterate over all events of the run until it ends, including those before this call.

        For a resumed run, the events of its earlier parts come first.

        Each call starts from the first event. A reader may leave at any time, and blocks nobody.
        """
        return EventReader(self._history)

    async def result(self) -> TuneResult:
        """Wait for the end and return the result. Raises what `tune` raises."""
        if not self._entered:
            raise UsageError(f"Tuner.result(): {NOT_ENTERED}")
        await self._done.wait()
        if self._error is not None:
            raise self._error
        assert self._result is not None
        return self._result

    def stop(self) -> None:
        """End the run early: work under way is finished, then the final benchmark runs."""
        self._stopped = True
        if self._engine is not None:
            self._engine.stop()

    @property
    def state(self) -> State | None:
        """The state folded from the recorded events; None before the first."""
        return None if self._recorder is None else self._recorder.state

    async def _alone(self) -> TuneResult:
        """Run, and return the result to a caller who waits for nothing else: no event is kept for readers."""
        self._history.kept = False
        if self._progress is None and not self._listeners.asked:
            self._progress, self._seldom = True, not is_watched()
        try:
            async with self:
                return await self.result()
        except BaseException as error:
            ended = error is self._listeners.raised or isinstance(error, anyio.get_cancelled_exc_class())
            if ended and (state := self.state) is not None:
                path, measured = self._journal_path, state.counts["measured"]
                kept = f"{measured} measured, and no journal kept"
                if path is not None and path.exists():  # one without an event was removed
                    then = "journal= continues it, as the next call of a decorated kernel does"
                    then += ", and atune resume" if state.header is not None and state.header.origin else ""
                    kept = f"{measured} measured are kept in {shlex.quote(str(path))}; {then}"
                error.add_note(f"tuning interrupted; {kept}")
            raise

    async def _run(self) -> None:
        made: Result | None = None
        patience_s = float("inf")
        try:
            with self._listeners.ending():
                if self._progress:
                    with Progress(budget=self._settings.budget, since=time.time(), seldom=self._seldom) as progress:
                        await self._record((self._listeners, progress.on_event))
                else:
                    await self._record((self._listeners,))
            assert self._recorder is not None and self._engine is not None, "they have run"
            path, recalled = self._journal_path and str(self._journal_path), bool(self._engine.recalled)
            made = Result.of(self._recorder.state, path, replayed=self._continued or recalled)
            self._result = winning(made)
            self._result.cache_hit = recalled
        except BaseException as error:
            heard = error is self._listeners.raised
            self._error = of_the_machine(error) if isinstance(error, OSError) and not heard else error
            if not (heard or isinstance(error, Exception)):
                self._error = AtuneError("the run was cancelled; what was measured is in its journal, if it has one")
                patience_s = 0.3
                raise
        finally:
            with anyio.move_on_after(patience_s, shield=True):
                await self._keep_in_cache(made)
            self._done.set()
            self._history.wake(ended=True)

    async def _keep_in_cache(self, made: Result | None) -> None:
        """Keep the run's journal in the result cache under its key, however the run ended."""
        path, state, cache = self._journal_path, self.state, self._cache
        answered = "" if self._engine is None else self._engine.recalled
        useless = isinstance(self._error, UsageError) and not (self._continued or (state and state.counts["measured"]))
        if path is not None and cache is not None and str(path) != answered:
            try:
                if useless or not path.exists():  # it got no event
                    if made is not None:
                        what = f"the journal {path} was removed while the run wrote it, or could not be written"
                        warn_caller(f"{what}: the result is valid, but it is not saved", RuntimeWarning)
                    await anyio.to_thread.run_sync(cache.discard, path, abandon_on_cancel=True)
                elif state is not None and state.header:
                    await anyio.to_thread.run_sync(cache.add, path, abandon_on_cancel=True)
            except Exception as error:  # which costs the entry, and not the run
                if isinstance(error, Warning):  # the program makes errors of warnings
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
            for one in (journal, kept):
                if one is not None:
                    one.close()
        if engine.recalled and kept is not None:  # which has no more than that journal
            self._journal_path = Path(engine.recalled)
            await anyio.to_thread.run_sync(self._keep_one, kept.path, engine.recalled)

    def _keep(self, journal: Journal, event: Event) -> None:
        """Write an event into a journal that nobody asked for: the run goes on where it cannot be written."""
        recorder = self._recorder
        assert recorder is not None, "it has an event"
        try:
            journal.append(event)
        except Exception as error:
            del recorder.listeners[-1]
            recorder.emit(Warned, message=f"the run goes on without its journal: {name_and_message(error)}")

    def _keep_one(self, copy: str, journal: str) -> None:
        """Discard the `copy` of a `journal` that answered, which becomes the latest."""
        assert self._cache is not None, "it made the copy"
        self._cache.discard(copy)
        with suppress(OSError):
            os.utime(journal)


async def _end_journal(recorder: Recorder, reason: str) -> None:
    """Record that the run ended early, under a short shield. A broken journal stays unchanged."""
    if not recorder.emitted or recorder.state.finished is not None:
        return
    with suppress(Exception), anyio.move_on_after(0.3, shield=True):
        recorder.emit(RunInterrupted, wall_s=round(recorder.part_s, 4), reason=reason[:500])
        await recorder.sync()


@documents(TuneOptions)
async def tune(workload: Workload | FileRef | str | None = None, **options: Unpack[TuneOptions]) -> TuneResult:
    """Tune `workload` and return the result.

    Raises `UsageError` (and its branches) for arguments that cannot work; for an unknown option it is a TypeError too.
    Raises `NoWinner` if no candidate worked, and `DevicesLost` if no device is left. Cancelling it kills every worker
    and compiler within a second. The journal keeps all measurements.

    Parameters
    ----------
    workload
        A `Workload`, or ``"FILE.py:NAME"``, which only the workers load.
    {options}
    """
    return await _finished(lambda: Tuner.planned(workload, RunPlan.of("tune", options)))


async def tune_planned(workload: Workload, plan: RunPlan) -> TuneResult:
    """Do what `tune` does, as `plan` says."""
    return await _finished(partial(Tuner.planned, workload, plan))


async def _finished(make: Callable[[], Tuner]) -> TuneResult:
    """Make a tuner, whose fingerprints and pickles of the workload may be large, and return its result."""
    tuner = make() if importing() else await anyio.to_thread.run_sync(make, abandon_on_cancel=True)
    return await tuner._alone()


@documents(TuneOptions)
def run(workload: Workload | FileRef | str | None = None, **options: Unpack[TuneOptions]) -> TuneResult:
    """Do what `tune` does, blocking. Works inside a running event loop too, such as a notebook's.

    KeyboardInterrupt ends it and kills every worker, in a thread too. Its message names the journal. Exceptions are
    those of `tune`.

    Parameters
    ----------
    workload
        A `Workload`, or ``"FILE.py:NAME"``, which only the workers load.
    {options}
    """
    # Here and not in the thread: the workload's module may be half imported, which others wait for, and pickling looks
    # for it.
    return run_blocking(Tuner.planned(workload, RunPlan.of("run", options))._alone)
