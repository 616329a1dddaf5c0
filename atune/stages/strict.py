"""Measurements of strangers' kernels, which may cheat: new inputs for each checked call, and every timed call checked.

The seeds are unpredictable. The first timing takes the usual way, with new inputs before each check. In the final, each
round has new inputs, and the outputs of each timed call are compared with the reference's.
"""

from __future__ import annotations

import ctypes
import faulthandler
import os
import secrets
from contextlib import suppress
from functools import partial

from atune.errors import WorkloadError
from atune.model.artifact import Artifact, Failure, fitting
from atune.model.jobs import FinalJob, Finals
from atune.model.measurement import FinalEntry, Measurement, Timing
from atune.stages import benchmark
from atune.stages.arguments import POISONS, KernelArguments
from atune.stages.check import Mismatch
from atune.stages.loader import load
from atune.stages.observer import Answer, Observer
from atune.stages.session import session
from atune.stages.timer import Timed

FRESH = ", new inputs for each call"
"""Part of `Timing.method`."""


def renew(arguments: KernelArguments) -> bool:
    """Make new inputs by an unpredictable seed, and run the reference. Return whether they differ."""
    differ = arguments.take(benchmark.make_arguments(arguments.params, arguments.roles, secrets.randbits(62)))
    benchmark.expecting(arguments)
    return differ


class FreshInputs(Observer):
    """Makes new inputs before the calls that are checked, and refuses a kernel that writes into other inputs."""

    def before(self) -> None:
        if benchmark.device.arguments is not None:
            renew(benchmark.device.arguments)

    def after(self, timing: Timing) -> Timing:
        self.before()  # for the check after the timing
        return timing

    def record(self, answer: Answer) -> Answer:
        if not isinstance(answer, Measurement) or (wrong := _changed({*answer.writes})) is None:
            return answer
        return Failure(answer.index, wrong.kind, wrong.message)  # type: ignore[return-value]


def _changed(written: set[int]) -> Mismatch | None:
    """Return the mismatch if `written` has an input that neither the task's kernel nor the reference writes into."""
    arguments = benchmark.device.arguments
    assert arguments is not None, "a kernel was called with them"
    others = sorted(written - {*arguments.writes, *arguments.named, *(arguments.expected or ())})
    return Mismatch("mismatch", f"it changed the input at parameter {others[0]}") if others else None


def final(job: FinalJob) -> Finals:
    """Time `artifacts` and the reference in turn, each round with new inputs, and check each call.

    Nothing is warmed up on the inputs of a timed call, so the first round does not count.
    """
    first, timer = job.artifacts[0], benchmark.device.timer
    arguments = benchmark.fit_arguments(first.params, fitting(first.roles, job.roles))
    # With a step before each call, although an empty one, the CPU's timer makes a single call.
    calls = [Timed(partial(load(artifact), *arguments.values), lambda: None) for artifact in job.artifacts]
    samples: list[list[float]] = [[] for _ in calls]
    failures, reference, fresh, waits = dict[int, Failure](), list[float](), True, None
    for number in range(job.rounds + 1):
        fresh &= renew(arguments)
        for i in sorted(range(len(calls)), key=lambda i: (i + number) % len(calls)):
            wrong = None if i in failures else _sample(job.artifacts[i], calls[i], arguments, samples[i])
            if wrong is not None:
                failures[i] = wrong
                if wrong.kind in ("fault", "out_of_bounds"):
                    return Finals((), None, tuple(failures.values()))  # the process is spoilt
        if (timed := benchmark.timed_reference()) is not None:
            timed.waits = waits
            reference += timer.samples(timed, 0, 1)
            waits = timed.waits
    method = f"{timer.method(calls[0])}, each call checked{FRESH * fresh}"
    pairs = [] if failures else zip(job.artifacts, samples, strict=True)
    entries = tuple(FinalEntry(artifact.index, Timing.of(us[1:], method)) for artifact, us in pairs)
    of_reference = Timing.of(reference[1:], method) if reference else None
    return benchmark.recorded(Finals(entries, of_reference, tuple(failures.values())))


def _sample(artifact: Artifact, call: Timed, arguments: KernelArguments, samples: list[float]) -> Failure | None:
    """Take a sample, and judge the outputs of the timed call and what else it wrote. Returns the failure."""
    taken, threads = list[float](), len(os.listdir("/proc/self/task"))
    work = Timed(lambda: taken.extend(benchmark.device.timer.samples(call, 0, 1)), arguments.restorer(arguments.writes))
    arguments.guards.renew()
    _free_l2()
    faulthandler.dump_traceback_later(session().benchmark.benchmark_timeout_s, exit=True)
    try:
        wrong, _ = benchmark.called_and_judged(work, arguments, secrets.SystemRandom().sample(POISONS, 2))
        wrong = wrong or _changed(arguments.restore_inputs())
    except WorkloadError:
        raise  # the reference or the check made a mistake
    except Exception as error:
        return benchmark.failed_call(error, artifact)
    finally:
        faulthandler.cancel_dump_traceback_later()
    if session().device == "cpu" and len(os.listdir("/proc/self/task")) > threads:
        wrong = Mismatch("refused", "it left threads behind, which could do its work after the call")
    samples.append(max(taken))  # of two calls, if elements of the output held the first poison
    return None if wrong is None else Failure(artifact.index, wrong.kind, f"{wrong.message} (in a timed call)")


def _free_l2() -> None:
    """Give back the part of the L2 cache in which an earlier kernel may have kept data."""
    if session().device != "cpu":
        with suppress(OSError, AttributeError):  # an old driver, under which the cache has no such part
            ctypes.CDLL("libcuda.so.1").cuCtxResetPersistingL2Cache()
