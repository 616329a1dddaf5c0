"""Measurements of strangers' kernels, which may cheat: new inputs for each checked call, and every timed call checked.

The seeds are unpredictable. The first timing takes the usual way, with new inputs before each check. In the final, each
round has new inputs, and the outputs of each timed call are compared with the reference's.
"""

from __future__ import annotations

import ctypes
import faulthandler
import functools
import os
import secrets
from contextlib import suppress

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
    first, timer, limit_s = job.artifacts[0], benchmark.device.timer, session().benchmark.benchmark_timeout_s
    arguments = benchmark.fit_arguments(first.params, fitting(first.roles, job.roles))
    calls = [functools.partial(load(artifact), *arguments.values) for artifact in job.artifacts]
    samples: list[list[float]] = [[] for _ in calls]
    failures, reference, fresh = dict[int, Failure](), list[float](), True
    for number in range(job.rounds + 1):
        fresh &= renew(arguments)
        for i in sorted(range(len(calls)), key=lambda i: (i + number) % len(calls)):
            faulthandler.dump_traceback_later(limit_s, exit=True)
            wrong = None if i in failures else _sample(job.artifacts[i], calls[i], arguments, samples[i])
            if wrong is not None:
                failures[i] = wrong
                if wrong.kind in ("fault", "out_of_bounds"):
                    return Finals((), None, tuple(failures.values()))  # the process is spoilt
        if (timed := benchmark.timed_reference()) is not None:
            reference += timer.samples(timed, 0, 1)
    faulthandler.cancel_dump_traceback_later()
    method = f"{timer.method(Timed(calls[0]))}, each call checked{FRESH * fresh}"
    pairs = [] if failures else zip(job.artifacts, samples, strict=True)
    entries = tuple(FinalEntry(artifact.index, Timing.of(us[1:], method)) for artifact, us in pairs)
    of_reference = Timing.of(reference[1:], method) if reference else None
    return benchmark.recorded(Finals(entries, of_reference, tuple(failures.values())))


def _sample(
    artifact: Artifact, call: functools.partial[None], arguments: KernelArguments, samples: list[float]
) -> Failure | None:
    """Take a sample, and judge the outputs of the timed call and what else it wrote. Returns the failure."""
    taken, timer, on_cpu = list[float](), benchmark.device.timer, session().device == "cpu"

    def free_l2() -> None:
        with suppress(OSError, AttributeError):  # the CPU, or an old driver, under which L2 keeps nothing
            None if on_cpu else ctypes.CDLL("libcuda.so.1").cuCtxResetPersistingL2Cache()

    def timed() -> None:
        taken.extend(timer.samples(Timed(call, free_l2), 0, 1))

    arguments.guards.renew()
    threads, poisons = len(os.listdir("/proc/self/task")), secrets.SystemRandom().sample(POISONS, 2)
    try:
        work = Timed(timed, arguments.restorer(arguments.writes))
        wrong, _ = benchmark.called_and_judged(work, arguments, poisons)
        wrong = wrong or _changed(arguments.restore_inputs())
    except WorkloadError:
        raise  # the reference or the check made a mistake
    except Exception as error:
        return benchmark.failed_call(error, artifact)
    if on_cpu and len(os.listdir("/proc/self/task")) > threads:
        wrong = Mismatch("refused", "it left threads behind, which could do its work after the call")
    samples.append(max(taken))  # of two, if elements of the output held the first poison
    return None if wrong is None else Failure(artifact.index, wrong.kind, f"{wrong.message} (in a timed call)")
