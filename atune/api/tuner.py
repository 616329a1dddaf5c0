"""The three ways to tune from Python: `await tune()`, blocking `run()`, and the `Tuner` handle with its events."""

from __future__ import annotations

import errno
import inspect
import os
import resource
import sys
import tempfile
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, TypeVar, Unpack

import anyio
import anyio.from_thread
import anyio.lowlevel
import anyio.to_thread

from atune.api.machines import machine_for
from atune.api.options import ELSEWHERE, TuneOptions, check_settings, named
from atune.api.priors import GivenPrior, chosen_prior
from atune.api.warm import Warm, adviser
from atune.cluster.address import Cluster
from atune.engine.engine import Engine, unwrapped
from atune.engine.interfaces import Machine
from atune.engine.plan import check_parts
from atune.errors import AtuneError, NoWinner, UsageError, name_and_message
from atune.journal.events import Event, RunInterrupted
from atune.journal.recorder import Listener, Recorder
from atune.journal.result import TuneResult
from atune.journal.writer import Journal
from atune.local.patience import machine_error
from atune.model.device import device_names, parse_target
from atune.model.former_names import RUN
from atune.model.options import named_options
from atune.model.settings import BenchmarkSettings, Budget, CompileSettings
from atune.processes.server import refuse_in_worker
from atune.reporting.log import EventLog, event_log
from atune.search.choosing import check_given
from atune.search.interface import Strategy
from atune.search.prior import OwnPrior
from atune.storage.artifact_store import find
from atune.storage.artifact_store import keep as keep_library
from atune.system.paths import cache_folder_at, chosen_cache_folder
from atune.system.shortage import shortage_of
from atune.workload.workload import FileRef, Workload

T = TypeVar("T")


class Tuner:
    """One tuning run as a handle.

        async with Tuner(workload) as tuner:
            async for event in tuner.events():
                ...
            result = await tuner.result()

    The run starts on entering; leaving before its end cancels it. Parameters are those of `tune`, and so are the
    mistakes that it raises `UsageError` for.
    """

    @named_options("Tuner", ELSEWHERE, RUN)
    def __init__(
        self,
        workload: Workload | FileRef | str | None = None,
        *,
        target: str = "auto",
        devices: str | Sequence[str | int] = "all",
        strategy: str | Strategy | None = None,
        prior: GivenPrior = None,
        seed: int = 0,
        budget: int | str | Budget | None = None,
        until: float | str | None = None,
        keep: float | str | None = None,
        audit: float | str | bool | None = None,
        journal: str | os.PathLike[str] | None = None,
        warm: Warm = None,
        pipeline: bool = True,
        compile: CompileSettings | None = None,
        benchmark: BenchmarkSettings | None = None,
        on_event: Callable[[Event], None] | None = None,
        log: EventLog | None = None,
        progress: bool = False,
        accept: Sequence[str] = (),
        cluster: str | Cluster | None = None,
        machine: Machine | None = None,
    ) -> None:
        where = Cluster.parse(cluster)
        if machine is None:
            refuse_in_worker()
        check_listener(on_event)
        check_settings(compile, benchmark, pipeline=pipeline, progress=progress)
        parse_target(target)
        accept, advise = check_parts(accept), adviser(warm)
        known = chosen_prior(prior)
        self._budget = Budget.parse(budget).having(until=until, keep=keep, audit=audit)
        own_prior = isinstance(known, OwnPrior) and self._budget.keep is None
        check_given(strategy, pipeline=pipeline, own_prior=own_prior)
        names = device_names(devices) if machine is None else ()
        compile, benchmark = compile or CompileSettings(), benchmark or BenchmarkSettings()
        if machine is None:
            machine = machine_for(
                workload, cluster=where, target=target, devices=names, compile=compile, benchmark=benchmark
            )
        self._journal_path = None if journal is None else Path(journal)
        self._listeners: tuple[Listener, ...] = (on_event,) if on_event is not None else ()
        self._listeners += (event_log(log),) if log is not None else ()
        self._progress = progress
        self._make: Callable[[Recorder], Engine] = lambda recorder: Engine(
            machine,
            recorder,
            compile=compile,
            benchmark=benchmark,
            strategy=strategy,
            prior=known,
            seed=seed,
            budget=self._budget,
            pipeline=pipeline,
            keep=keep_library,
            find=find,
            accept=accept,
            advise=advise,
        )
        self._past: list[Event] = []
        self._keeps_past = True
        self._result: TuneResult | None = None
        self._error: BaseException | None = None
        self._recorder: Recorder | None = None
        self._engine: Engine | None = None
        self._stopped = self._entered = False

    async def __aenter__(self) -> Tuner:
        self._entered = True
        self._done = anyio.Event()
        self._more = anyio.Event()
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
            return False  # the body's own error, as it was raised

    def events(self) -> AsyncIterator[Event]:
        """Return every event of the run from its first on, also those before this call, until the run ends.

        For a run that goes on, those of its earlier parts come first.

        Each call starts anew; a reader may leave at any time, and holds up nobody.
        """
        return _Events(self)

    async def result(self) -> TuneResult:
        """Wait for the end and return the result. Raises what `tune` raises."""
        self._must_be_entered("result")
        await self._done.wait()
        if self._error is not None:
            raise self._error
        assert self._result is not None
        return self._result

    def stop(self) -> None:
        """End the run early, in order: what is under way is measured, then comes the final."""
        self._stopped = True
        if self._engine is not None:
            self._engine.stop()

    def _must_be_entered(self, method: str) -> None:
        if not self._entered:
            raise UsageError(f"Tuner.{method}(): the run starts on entering: `async with Tuner(...) as tuner:`")

    async def _made_result(self) -> TuneResult:
        """Return the result of what was recorded: made in a thread, as there may be very many candidates."""
        assert self._recorder is not None
        path = None if self._journal_path is None else str(self._journal_path)
        return await anyio.to_thread.run_sync(partial(TuneResult, self._recorder.state, journal=path))

    def _publish(self, event: Event) -> None:
        if not self._keeps_past:
            return
        self._past.append(event)
        self._more.set()
        self._more = anyio.Event()

    async def _run(self) -> None:
        try:
            if self._progress:
                from atune.reporting.progress import Progress

                with Progress(budget=self._budget) as progress:
                    await self._record((*self._listeners, progress.on_event))
            else:
                await self._record(self._listeners)
            self._result = result = await self._made_result()
            if result.best_config is None:
                raise NoWinner(no_winner_message(result), result)
        except OSError as error:
            self._error = of_the_machine(error)
        except Exception as error:
            self._error = error
        except BaseException:
            self._error = AtuneError("the run was cancelled; what was measured is in its journal, if it has one")
            raise
        finally:
            self._done.set()
            self._more.set()

    async def _record(self, listeners: tuple[Listener, ...]) -> None:
        journal: Journal | None = None
        past: Sequence[Event] = ()
        if self._journal_path is not None:
            journal, past = await Journal.start_aside(self._journal_path)
        self._recorder = recorder = Recorder(journal, (self._publish, *listeners))
        try:
            await recorder.go_on(past)
            self._engine = engine = self._make(recorder)
            if self._stopped:
                engine.stop()
            await engine.run()
        except BaseException as error:
            cause = unwrapped(error) if isinstance(error, BaseExceptionGroup) else error
            cancelled = isinstance(cause, anyio.get_cancelled_exc_class())
            await _end_journal(recorder, "cancelled" if cancelled else name_and_message(cause))
            if cause is error:
                raise
            raise cause from None
        finally:
            if journal is not None:
                journal.close()


def of_the_machine(error: OSError) -> Exception:
    """Return what to raise for `error`: one that says what to do where the machine is short of something."""
    if error.errno in (errno.EMFILE, errno.ENFILE):
        return too_many_files(error)
    if (short_of := shortage_of(error)) is None:
        return error
    said = machine_error(short_of, tempfile.gettempdir())
    said.__cause__ = error
    return said


def too_many_files(error: OSError) -> UsageError:
    """Return what to raise where the system opens no more files: whose limit it is, and what to do."""
    if error.errno == errno.ENFILE:
        said = UsageError("the machine has too many files open: end what has them, or try again later")
    else:
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        said = UsageError(
            f"this process may have {most} files open, and needs more: raise that (ulimit -n 1024), or use fewer "
            "workers (--workers, CompileSettings(workers=…)); each takes one or two"
        )
    said.__cause__ = error
    return said


class _Events:
    """One reader's place in a run's events. Not an async generator: those want closing when a reader leaves."""

    def __init__(self, tuner: Tuner) -> None:
        self._tuner, self._position = tuner, 0

    def __aiter__(self) -> _Events:
        return self

    async def __anext__(self) -> Event:
        await anyio.lowlevel.checkpoint()
        tuner = self._tuner
        tuner._must_be_entered("events")
        while self._position == len(tuner._past):
            if tuner._done.is_set():
                raise StopAsyncIteration
            await tuner._more.wait()
        self._position += 1
        return tuner._past[self._position - 1]


def check_listener(on_event: object) -> None:
    """Raise `UsageError` where `on_event` cannot be called as a plain function of an event."""
    if on_event is None:
        return
    if not callable(on_event):
        raise UsageError(f"on_event must be a function of an event, got {on_event!r}")
    called = (on_event, inspect.getattr_static(type(on_event), "__call__", None))
    if any(inspect.iscoroutinefunction(one) or inspect.isasyncgenfunction(one) for one in called):
        raise UsageError(
            "on_event is called and not awaited, and must be a plain function; for async code read the events: "
            "`async with Tuner(...) as tuner: async for event in tuner.events(): ...`"
        )


async def _end_journal(recorder: Recorder, reason: str) -> None:
    """Record that the run ended early. Short and shielded; a journal that broke is left as it is."""
    if not recorder.emitted or recorder.state.finished is not None:
        return
    with suppress(Exception), anyio.move_on_after(0.3, shield=True):
        recorder.emit(RunInterrupted, wall_s=round(recorder.part_s, 4), reason=reason[:500])
        await recorder.sync()


def no_winner_message(result: TuneResult) -> str:
    """Say that nothing worked, and why: the reasons grouped and counted, the most frequent first."""
    if not result.total or result.remaining == result.total:
        return "no candidate was tried: the budget ended before the first one"
    counts = (
        f"{result.failed} failed, {result.pruned} pruned, {result.duplicates} duplicates, {result.remaining} not tried"
    )
    lines = [f"  {count} × {kind}: {message}" for kind, message, count in result.failure_summary()[:10]]
    return "\n".join([f"no candidate worked ({counts}):", *lines])


async def tune(workload: Workload | FileRef | str | None = None, **options: Unpack[TuneOptions]) -> TuneResult:
    """Tune `workload` and return the result.

    Parameters
    ----------
    workload
        A `Workload`, or ``"FILE.py:NAME"``, which only the workers load.
    target
        ``auto`` (CUDA where there is a GPU, else the CPU), ``cuda``, an arch such as ``sm_90a``, or ``c``.
    devices
        ``all``, ``cpu``, or numbers of GPUs such as ``[0, 1]``.
    strategy, seed
        ``exhaustive``, ``random``, ``prior``, ``local``, ``evolution``, ``forest`` (which needs ``atune[search]``),
        ``optuna`` or ``optuna:NAME`` of a sampler (which need ``atune[optuna]``), ``auto``, or an object with a name,
        ``ask()`` and ``tell(index, latency_ms, reason)``. ``auto`` is ``exhaustive`` where the budget admits all; for
        few it is ``prior``, or ``random`` where there is none; else ``forest``, or ``evolution`` where scikit-learn is
        missing. None is ``auto`` under a budget, else
        ``exhaustive``; a journal goes on with its own. The seed decides whatever is drawn.
    prior
        Estimates by which a search begins with likely winners. ``auto``, as None means: from the machine's figures and
        the elaborated kernels, on CUDA. A function of (configuration, `StaticFacts`) that returns milliseconds or a
        rank, less being better: that, also where there is no budget. False: none.
    budget
        Candidates (``40``), a share of them (``"10%"``), a time in seconds, minutes or hours (``"90s"``, ``"2m"``,
        ``"1h"``), seconds of devices (``"20ds"``) or a `Budget`; None tries the whole space. Under a budget candidates
        that will probably spill registers are skipped.
    until
        End once a further gain above this share (``"2%"`` or 0.02) has less than one chance in ten. Needs
        ``atune[search]`` and a space that is listed.
    keep
        Try only so many candidates (``40``, or a share, ``"10%"``): those that the prior takes for the best.
    audit
        True, or a share: measure a tenth, or that share, of what was skipped, after all others.
    journal
        Path of the journal; None writes none. One that holds a run of the same work already is continued, as by
        `resume`; one of other work is refused.
    warm
        What was measured of the same kernel on other problems or devices: journals' paths, results, or ``"cache"``, the
        result cache; or a list of these. Their best configurations are tried first, and strategies learn from the rest.
    pipeline
        False starts measuring when all compiling is done; for comparison.
    compile, benchmark
        `CompileSettings` and `BenchmarkSettings`.
    on_event
        Called with each event, in the event loop: keep it short. A plain function; one that raises is dropped.
    log
        A logger of structlog: each event is an entry of its name and fields, see `atune.reporting.log.event_log`.
    progress
        Show progress on stderr.
    accept
        Parts of the work in which an existing journal may differ; see `resume`.
    cluster
        Run on the nodes of a Ray cluster: ``auto``, ``local``, ``ray://HOST:10001``, ``HOST:6379`` or a `Cluster`.
        Needs ``atune[ray]``. `devices` and `CompileSettings.workers` then hold for each node. None: this machine alone.
    machine
        Brings its own workload, compilers and devices, such as `atune.testing.FakeMachine`.

    Raises `UsageError` (and its branches) for what cannot work, which is a TypeError too for an option that there is
    not; `NoWinner` when no candidate worked; `DevicesLost` when no device is left. Cancelling it kills every worker
    and compiler within a second; the journal keeps what was measured.
    """
    given = named("tune", options)
    make = partial(Tuner, workload, **given)  # fingerprints and pickles the workload, which may be large
    return await _finished(make() if _importing() else await anyio.to_thread.run_sync(make, abandon_on_cancel=True))


def _importing() -> bool:
    """Tell whether this thread is in an import: another that pickles would wait for it, while we wait for the other."""
    frame: FrameType | None = sys._getframe()
    while frame is not None and frame.f_code.co_filename != "<frozen importlib._bootstrap>":
        frame = frame.f_back
    return frame is not None


async def _finished(tuner: Tuner) -> TuneResult:
    tuner._keeps_past = False  # nobody can ask this one for its events, and there may be hundreds of thousands
    async with tuner:
        return await tuner.result()


def run(workload: Workload | FileRef | str | None = None, **options: Unpack[TuneOptions]) -> TuneResult:
    """Do what `tune` does, blocking; also inside a running event loop, such as a notebook's.

    Ends by KeyboardInterrupt, in a thread too, with every worker killed. Parameters and exceptions are `tune`'s.
    """
    given = named("run", options)
    # Here and not in the thread: the workload's module may be half imported, which others wait for, and pickling looks
    # for it.
    return run_blocking(_finished, Tuner(workload, **given))


def run_blocking(function: Callable[..., Awaitable[T]], /, *arguments: Any, **options: Any) -> T:
    """Await `function` in an event loop of its own, in a thread, and return what it returns, as `run` does."""
    outcome: list[T] = []
    errors: list[BaseException] = []
    scope: list[tuple[anyio.CancelScope, anyio.from_thread.BlockingPortal]] = []
    ready, ended = threading.Event(), threading.Event()
    folder = chosen_cache_folder()

    async def work() -> None:
        async with anyio.from_thread.BlockingPortal() as portal:
            with anyio.CancelScope() as cancel:
                scope.append((cancel, portal))
                ready.set()
                outcome.append(await function(*arguments, **options))

    def thread() -> None:
        try:
            with cache_folder_at(folder):
                anyio.run(work)
        except BaseException as error:
            errors.append(unwrapped(error) if isinstance(error, BaseExceptionGroup) else error)
        finally:
            ready.set()
            ended.set()

    runner = threading.Thread(target=thread, name="atune-run", daemon=True)
    runner.start()
    try:
        # Not join(): before Python 3.13 one that KeyboardInterrupt ends takes the thread for ended too.
        while not ended.wait(0.1):  # with a timeout, so that a signal's handler gets its turn
            pass
    except BaseException:
        ready.wait()
        if scope:
            cancel, portal = scope[0]
            with suppress(RuntimeError):
                portal.start_task_soon(cancel.cancel)
        ended.wait(5)
        raise
    runner.join()
    if errors:
        raise errors[0]
    return outcome[0]
