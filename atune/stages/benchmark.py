"""Artifact → Measurement, in the device's own process: load, compare with the reference, time, and notify observers."""

from __future__ import annotations

import contextlib
import functools
import importlib
import random
import secrets
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

from atune.errors import UsageError, WorkloadError, in_one_line, message_of, whole_message
from atune.model.artifact import Artifact, Failure, KernelParam, Roles, fitting
from atune.model.device import DeviceInfo
from atune.model.jobs import FinalJob, Finals, MeasureJob, Prepared, PrepareJob
from atune.model.measurement import FinalEntry, Measurement, Timing
from atune.model.settings import BenchmarkSettings
from atune.stages.arguments import POISONS, KernelArguments, user_name
from atune.stages.check import Mismatch, expected_outputs, judged, reference_positions
from atune.stages.gpu import kind_of
from atune.stages.loader import LoadError, load
from atune.stages.observer import Answer, Observer
from atune.stages.session import loaded_as, session, workload
from atune.stages.timer import PROBE, DeviceStream, Timed, Timer, counts, make_timer, still_wanted
from atune.workers.resources import Resource, ShortOf, check_machine
from atune.workload.source_locations import ask

AFTER_TIMING = " (after it was timed)"
OVERWRITTEN = "the kernel changed memory outside its arguments: the reference's outputs, or the copies of the inputs"
EXHAUSTIBLE: Resource = "files"
"""Resource that a process's candidates can exhaust. A candidate that lacks the resource is tried in a new process."""


class _Device:
    """State of this process's device. `begin` creates the state, and all later calls use it."""

    stream: DeviceStream
    timer: Timer
    observers: tuple[Observer, ...] = ()
    arguments: KernelArguments | None = None
    copies_on_host = False
    """Whether inputs are restored from copies on the host, because the device had too little memory for the copies."""
    prepared: tuple[KernelParam, ...] = ()
    """Parameters for which the workload's inputs and reference have already worked."""


device = _Device()


def begin(info: DeviceInfo) -> str:
    """Unless the device's context exists, create it before any artifact is loaded. Return the GPU's UUID from CUDA."""
    import torch

    if info.id == "cpu":
        torch.set_num_threads(1)  # the kernel runs on one core, so the reference must, too
    if not hasattr(device, "timer"):
        if info.id != "cpu":
            torch.cuda.init()
        device.stream = DeviceStream(info.id)
        device.timer = make_timer(device.stream)  # it allocates, which makes the context
    uuid = "" if info.id == "cpu" else f"GPU-{torch.cuda.get_device_properties(0).uuid}"
    if uuid and info.uuid and uuid != info.uuid:
        raise RuntimeError(f"atune asked for the GPU {info.uuid}, but CUDA shows {uuid}")
    return uuid


def recorded(answer: Answer) -> Answer:
    for observer in device.observers:
        answer = observer.record(answer)
    return answer


def _moves_copies_to_host() -> bool:
    """From now on, keep copies on the host, and free device memory. Return False if the host already has all copies."""
    if device.copies_on_host or session().device == "cpu":
        return False
    device.copies_on_host = True
    release()
    return True


def prepare(job: PrepareJob) -> Prepared:
    """Make the inputs and run the reference. If the job asks for a timing of the reference, time the reference. Raises
    `WorkloadError` if the device has too little memory, and `ShortOf` if other processes use the memory."""
    lack: Failure | None = None
    try:
        with workload().placed():
            fit_arguments(job.params, job.roles, anew=True)
    except Exception as error:
        if kind_of(error) != "out_of_memory":
            raise
        lack = Failure(-1, "out_of_memory", in_one_line(error))
    if lack is not None:  # outside the handler, because the error's frames hold the tensors
        if _moves_copies_to_host():
            return prepare(job)
        lack = recorded(lack)
        message = (
            f"Workload {workload().name}: {session().device} has too little memory for the inputs and the reference: "
            f"make the problem smaller, or free memory there ({lack.message})"
        )
        raise ShortOf(f"device memory: {message}; {lack.doubt}") if lack.doubt else WorkloadError(message)
    device.prepared, reference = job.params, None
    if job.timed and (timed := timed_reference()) is not None:
        settings = session().benchmark
        name = f"Workload {workload().name}: {user_name(workload(), 'the reference')}"
        reference = _timing(ask(name, lambda: _samples(timed, settings, None)), timed)
    return Prepared(reference, loaded_as())


def measure(job: MeasureJob) -> Measurement | Failure:
    """Check and time a candidate."""
    return recorded(_measured(job))


def _measured(job: MeasureJob) -> Measurement | Failure:
    artifact = job.artifact
    started = time.perf_counter()
    result: Measurement | Failure
    try:
        fit_arguments(artifact.params, fitting(artifact.roles, job.roles), anew=not session().benchmark.cache_inputs)
        function = load(artifact)
    except LoadError as error:
        check_machine(error, message_of(error), but=EXHAUSTIBLE)
        result = Failure(artifact.index, "load", in_one_line(error), whole_message(error))
    except UsageError as error:
        if artifact.params == device.prepared:
            raise  # the workload's mistake, not this candidate's
        result = Failure(artifact.index, "launch", message_of(error))
    except BaseException as error:
        check_machine(error, but=EXHAUSTIBLE)
        result = Failure(artifact.index, kind_of(error), in_one_line(error), whole_message(error))
    else:
        try:
            result = _checked_and_timed(artifact, function, started, job.best_ms)
        except WorkloadError:
            raise  # the workload's check made a mistake
        except BaseException as error:
            check_machine(error, but=EXHAUSTIBLE)
            result = failed_call(error, artifact)
    if isinstance(result, Failure) and result.kind == "out_of_memory":
        if _moves_copies_to_host():
            return _measured(job)
        release()
    return result


def failed_call(error: BaseException, artifact: Artifact) -> Failure:
    """Return the failure of a candidate whose call raised `error`. A write out of bounds takes precedence over the
    error."""
    kind, message = kind_of(error), in_one_line(error)
    if kind == "launch" and device.arguments is not None:
        with contextlib.suppress(Exception):  # the device may not answer any more
            if damage := device.arguments.guards.damage():
                kind, message = "out_of_bounds", f"{damage}; then the call raised {message}"
    return Failure(artifact.index, kind, message, whole_message(error))


def final(job: FinalJob) -> Finals:
    """Time all candidates in rounds, each with a different order. Afterwards, check the outputs of all candidates."""
    calls: list[Timed] = []
    arguments_of: dict[Any, KernelArguments] = {}
    for artifact in job.artifacts:  # candidates may differ in their parameters
        form = artifact.params, fitting(artifact.roles, job.roles)
        if form not in arguments_of:
            arguments_of[form] = fit_arguments(*form)
        arguments = arguments_of[form]
        call = functools.partial(load(artifact), *arguments.values)
        call()
        device.timer.synchronise()
        calls.append(_timed(call, arguments.restorer(arguments.restore_inputs())))
    if (of_reference := timed_reference()) is not None:
        calls.append(of_reference)
    samples = device.timer.interleaved(calls, job.rounds, session().benchmark.n_warmup)
    entries = [FinalEntry(a.index, _timing(s, c)) for a, s, c in zip(job.artifacts, samples, calls, strict=False)]
    failures = []
    for artifact, timed in zip(job.artifacts, calls, strict=False):
        arguments = arguments_of[artifact.params, fitting(artifact.roles, job.roles)]
        if _spoilt(arguments):  # by a candidate, while all were timed
            expecting(arguments)
        arguments.guards.renew()  # damage after the call below is this candidate's
        arguments.restore_inputs()
        wrong, _ = _called_and_judged(timed, arguments, POISONS[::-1])
        if wrong is not None:
            failures.append(Failure(artifact.index, wrong.kind, f"{wrong.message}{AFTER_TIMING}"))
        arguments.restore_inputs()
    reference = _timing(samples[-1], calls[-1]) if of_reference is not None else None
    return recorded(Finals(tuple(entries), reference, tuple(failures)))


def fit_arguments(params: tuple[KernelParam, ...], roles: Roles, *, anew: bool = False) -> KernelArguments:
    """Make the inputs and run the reference, unless the previous candidate's arguments can be used again."""

    def fits(known: KernelArguments) -> bool:
        return (known.params, known.roles) == (params, roles) and not _spoilt(known)

    if anew or device.arguments is None or not fits(device.arguments):
        device.arguments = None  # frees their memory before new arguments are made
        device.arguments = expecting(make_arguments(params, roles))
    return device.arguments


def expecting(arguments: KernelArguments) -> KernelArguments:
    if workload().reference is not None:
        arguments.expected = expected_outputs(workload(), arguments)
    arguments.evidence_before = arguments.evidence()
    return arguments


def _spoilt(arguments: KernelArguments) -> bool:
    """Tell whether a candidate has changed the reference's outputs or the copies of the inputs."""
    return session().benchmark.check and arguments.evidence() != arguments.evidence_before


def make_arguments(params: tuple[KernelParam, ...], roles: Roles, seed: int = 0) -> KernelArguments:
    """Return arguments for kernels of the workload, on the device of this process."""
    where, strict = "cpu" if session().device == "cpu" else "cuda", session().allow is not None
    on_host = device.copies_on_host or (strict and where == "cuda")  # where a kernel cannot change them
    if strict:
        seed = secrets.randbits(62)
        random.seed(seed)  # a stranger's process was forked with the same generators as this process
        importlib.import_module("numpy").random.seed(seed % 2**32)
    return KernelArguments(workload(), params, roles, where, seed, copies_on_host=on_host)


def timed_reference() -> Timed | None:
    """Return the call of the reference; None if there is no reference, or if the reference only judges outputs."""
    work, arguments = workload(), device.arguments
    if work.reference is None or arguments is None or arguments.expected is None:
        return None
    fresh = arguments.fresh()
    return _timed(functools.partial(work.reference, *[fresh[i] for i in reference_positions(work, arguments)]))


def _timed(call: Callable[[], Any], before: Callable[[], None] | None = None) -> Timed:
    return Timed(call, before, warm=session().benchmark.l2 == "warm")


def _checked_and_timed(
    artifact: Artifact, function: Callable[..., None], started: float, best_ms: float | None
) -> Measurement | Failure:
    arguments, settings = device.arguments, session().benchmark
    assert arguments is not None
    call = functools.partial(function, *arguments.values)
    arguments.guards.renew()
    for observer in device.observers:
        observer.before()
    wrong, worst = _called_and_judged(Timed(call), arguments, POISONS)
    if wrong is None:
        _observe_call(arguments)
    changed = arguments.restore_inputs()
    if wrong is not None:
        return Failure(artifact.index, wrong.kind, wrong.message)
    timed = _timed(call, arguments.restorer(changed))
    timing = _timing(_samples(timed, settings, best_ms if settings.adaptive else None), timed)
    wrong, worst_again = _called_and_judged(timed, arguments, POISONS[::-1])
    if wrong is None:
        _observe_call(arguments)
    arguments.restore_inputs()
    if wrong is not None:
        return Failure(artifact.index, wrong.kind, f"{wrong.message}{AFTER_TIMING}")
    if worst is not None and worst_again is not None:
        worst = max(worst, worst_again)
    has_judge = workload().reference is not None or workload().check is not None
    compared = arguments.expected or (*arguments.out_idx, *arguments.writes)
    checked = settings.check and has_judge and any(arguments.values[i].numel() for i in compared)
    seconds, writes = _since(started), tuple(sorted(changed))
    return Measurement(artifact.index, timing, checked, worst, seconds, writes, arguments.set_up)


def _observe_call(arguments: KernelArguments) -> None:
    for observer in device.observers:
        observer.after_call(arguments)


def _called_and_judged(
    timed: Timed, arguments: KernelArguments, poisons: Sequence[int]
) -> tuple[Mismatch | None, float | None]:
    """Fill the outputs with a byte of `poisons`, and call the kernel. Judge all writes since the guards were renewed.

    If an element still holds the first byte, repeat with the second byte, because the kernel may write the first byte.
    """
    unwritten: dict[int, Any] | None = None
    for poison in poisons:
        arguments.fill_outputs(poison)
        if timed.before is not None:
            timed.before()
        timed.call()
        device.timer.synchronise()
        if damage := arguments.guards.damage():
            return Mismatch("out_of_bounds", damage), None
        if not session().benchmark.check:
            return None, None
        if not (unwritten := arguments.still_holding(poison, unwritten)):
            break
        if poison != poisons[-1]:
            arguments.restore_inputs()
    if _spoilt(arguments):
        return Mismatch("out_of_bounds", OVERWRITTEN), None
    verdict = judged(workload(), arguments, arguments.expected, unwritten or {})
    if workload().check is not None:  # the check may write into its arguments
        arguments.evidence_before = arguments.evidence()
    return verdict


def _samples(timed: Timed, settings: BenchmarkSettings, best_ms: float | None) -> list[float]:
    """Take samples until the median is precise enough. The call whose outputs were checked is the first warm-up."""
    timer, factor = device.timer, settings.early_stop_factor
    n_warmup, n_repeat = settings.n_warmup, settings.n_repeat
    if settings.warmup_ms is not None or settings.rep_ms is not None:
        n_warmup, n_repeat = counts(settings, statistics.median(timer.samples(timed, 1, PROBE)))
    if best_ms is not None:
        # A few samples show that a candidate is clearly slow. Other candidates get the rest of their warm-up.
        probe = timer.samples(timed, min(n_warmup, 1), min(PROBE, n_repeat))
        if still_wanted(probe, n_repeat, best_ms, factor=factor) == 0:
            return probe
        n_warmup = max(0, n_warmup - 1 - len(probe))
    samples: list[float] = []
    while more := still_wanted(samples, n_repeat, best_ms, factor=factor, until_known=settings.adaptive):
        samples += timer.samples(timed, n_warmup, more)
        n_warmup = 0
    return samples


def _since(started: float) -> float:
    return round(time.perf_counter() - started, 4)


def _timing(samples_us: Sequence[float], timed: Timed) -> Timing:
    timing = Timing.of(samples_us, device.timer.method(timed))
    for observer in device.observers:
        timing = observer.after(timing)
    return timing


def release() -> None:
    """Free the memory of the inputs."""
    import gc

    import torch

    device.arguments = None
    gc.collect()
    if session().device != "cpu":
        torch.cuda.empty_cache()
