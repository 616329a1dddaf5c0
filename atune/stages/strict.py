"""The final for strangers' kernels, which may cheat. Each timed call gets new inputs, and its outputs are checked."""

from __future__ import annotations

import ctypes
import faulthandler
import os
import secrets
from contextlib import suppress
from functools import partial

import msgspec

from atune.errors import WorkloadError
from atune.model.artifact import Artifact, Failure, fitting
from atune.model.jobs import FinalJob, Finals
from atune.model.measurement import IN_FINAL, FinalEntry, Timing
from atune.stages import benchmark
from atune.stages.arguments import POISONS, KernelArguments
from atune.stages.check import Mismatch, judged
from atune.stages.loader import load
from atune.stages.session import session, workload
from atune.stages.timer import Timed


def final(job: FinalJob) -> Finals:
    """Time the artifacts and the reference in turn. Each call gets new inputs, drawn with an unpredictable seed.

    No warm-up call gets the inputs of a timed call. Instead, the first round is the warm-up, and its samples are
    discarded.
    """
    first, timer = job.artifacts[0], benchmark.device.timer
    form = first.params, fitting(first.roles, job.roles)
    arguments = benchmark.fit_arguments(*form)
    calls = [Timed(partial(load(artifact), *arguments.values)) for artifact in job.artifacts]
    samples: list[list[float]] = [[] for _ in (*calls, None)]
    failures, fresh, waits = dict[int, Failure](), True, None
    for number in range(job.rounds + 1):
        for i in sorted({*range(len(calls))} - failures.keys(), key=lambda i: (i + number) % len(calls)):
            fresh &= arguments.take(benchmark.make_arguments(*form))
            if (wrong := _sample(job.artifacts[i], calls[i], arguments, samples[i])) is not None:
                failures[i] = wrong
                if wrong.kind in ("fault", "out_of_bounds"):
                    return Finals((), None, tuple(failures.values()))  # the process is spoilt
        if (timed := benchmark.timed_reference()) is not None:
            timed.waits = waits
            samples[-1] += timer.samples(timed, 0, 1)
            waits = timed.waits
    method = f"{timer.method(calls[0])}, each call checked{', new inputs for each call' * fresh}"
    timings = [] if failures else [Timing.of(taken[1:], method) for taken in samples if taken]
    entries = tuple(FinalEntry(a.index, timing) for a, timing in zip(job.artifacts, timings, strict=False))
    reference = timings[-1] if len(timings) > len(calls) else None
    return benchmark.recorded(Finals(entries, reference, tuple(failures.values())))


def _sample(artifact: Artifact, call: Timed, arguments: KernelArguments, samples: list[float]) -> Failure | None:
    """Take a sample, and judge the outputs and all other writes of the timed call. Returns the failure, if any.

    The reference runs after the timed call, so that the kernel cannot find the expected outputs in memory.
    """
    arguments.expected, restore = None, arguments.restorer(arguments.writes)

    def before() -> None:
        """Erase the outputs of an earlier call, because the timer may need several calls for a sample."""
        arguments.fill_outputs(secrets.choice(POISONS))
        if restore is not None:
            restore()

    call.before = before
    arguments.guards.renew()
    if session().device != "cpu":
        with suppress(OSError, AttributeError):  # an old driver, under which L2 keeps no data
            ctypes.CDLL("libcuda.so.1").cuCtxResetPersistingL2Cache()
    faulthandler.dump_traceback_later(session().benchmark.benchmark_timeout_s, exit=True)
    threads = len(os.listdir("/proc/self/task"))
    try:
        samples += benchmark.device.timer.samples(call, 0, 1)
        damage, left = arguments.guards.damage(), len(os.listdir("/proc/self/task")) - threads
        benchmark.expecting(arguments)
        wrong, _ = judged(workload(), arguments, arguments.expected, {})
        others = arguments.restore_inputs() - {*arguments.writes, *arguments.named, *(arguments.expected or ())}
        if damage:
            wrong = Mismatch("out_of_bounds", damage)
        elif left > 0 and session().device == "cpu":
            wrong = Mismatch("refused", "it left threads behind, which could do its work after the call")
        elif others:
            wrong = wrong or Mismatch("mismatch", f"it changed the input at parameter {min(others)}")
    except WorkloadError:
        raise  # the reference or the check made a mistake
    except Exception as error:
        failure = benchmark.failed_call(error, artifact)
        return msgspec.structs.replace(failure, message=f"{failure.message}{IN_FINAL}")
    finally:
        faulthandler.cancel_dump_traceback_later()
    return None if wrong is None else Failure(artifact.index, wrong.kind, f"{wrong.message}{IN_FINAL}")
