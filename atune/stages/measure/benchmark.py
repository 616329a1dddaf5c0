"""Artifact → Measurement, in the device's own process: load, check against the reference, time."""

from __future__ import annotations

import contextlib
import functools
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from atune.errors import UsageError, WorkloadError, in_one_line, message_of, whole_message
from atune.model.artifact import Artifact, Failure, KernelParam, Roles, fitting
from atune.model.device import DeviceInfo
from atune.model.jobs import Bits, BitsJob, FinalJob, Finals, MeasureJob, Prepared, PrepareJob, Started
from atune.model.measurement import FinalEntry, Measurement, Timing
from atune.model.settings import BenchmarkSettings
from atune.stages.measure.arguments import POISONS, DrawnInputs, KernelArguments, called
from atune.stages.measure.check import Mismatch, expected_outputs, judged, taken
from atune.stages.measure.loader import LoadError, load
from atune.stages.measure.telemetry import Observer, holders, kind_of
from atune.stages.measure.timer import PROBE, Timed, Timer, counts, make_timer, still_wanted
from atune.stages.session.session import loaded_as, session, workload
from atune.workers.system.resources import Resource, ShortOf, check_machine
from atune.workload.source_locations import ask

OWN_CONTEXT_BYTES = 1 << 30
"""Device memory of our own CUDA context, at most; further use is by other processes."""
CONTEXT_BYTES = 600 << 20
"""That of an H100's context, which is counted."""
AFTER_TIMING = " (once it had been timed)"
OVERWRITTEN = "it changed memory that it was not given: what the reference gave, or the copies of the inputs"
OWN: Resource = "files"
"""The resource that candidates can exhaust in this process: the candidate is tried again in a fresh one."""


class _Device:
    """This process's device: made by `begin`, used by every call after it."""

    timer: Timer
    observer: Observer | None = None
    context_bytes = 0
    """Memory that the context takes; 0 on the CPU."""
    arguments: KernelArguments | None = None
    spare = False
    """Whether its memory was short: copies to restore inputs from are on the host since."""
    prepared: tuple[KernelParam, ...] = ()
    """Parameters for which the workload's inputs and reference are known to work."""


_device = _Device()


def begin(payload: bytes) -> bytes:
    """Entry point: `DeviceInfo` → `Started`: make the device's context, before any artifact exists, once a process."""
    info = msgspec.msgpack.decode(payload, type=DeviceInfo)
    import torch

    if info.id == "cpu":
        torch.set_num_threads(1)  # the kernel runs on one core; so does the reference next to it
        _device.timer = make_timer(info.id)
    elif not hasattr(_device, "timer"):
        try:
            torch.cuda.init()
            _device.timer = make_timer(info.id)  # which allocates, and so makes the context
        except Exception as error:
            if kind_of(error) == "out_of_memory":
                raise ShortOf(f"device memory: {in_one_line(error)} ({holders(info.uuid)})") from error
            raise
        _device.context_bytes = CONTEXT_BYTES
        _limit_memory()
        visible = f"GPU-{torch.cuda.get_device_properties(0).uuid}"
        if info.uuid and visible != info.uuid:
            raise RuntimeError(f"asked for {info.uuid}, CUDA shows {visible}")
        _device.observer = Observer(visible)
    return msgspec.msgpack.encode(Started(info, _device.timer.handle))


def rest(_: bytes) -> bytes:
    """Entry point: forget the run, and free its memory: another one has the process next."""
    import torch

    _release()
    _device.prepared, _device.spare = (), False
    if _device.context_bytes:
        torch.cuda.reset_peak_memory_stats()
    return b""


def _limit_memory() -> None:
    """Keep this process within the session's limit. Raises `WorkloadError` where the context alone exceeds it."""
    import torch

    limit = session().memory_bytes
    if limit is None:
        return
    left = limit - _device.context_bytes
    if left <= 0:
        raise WorkloadError(
            f"memory_limit: {limit >> 20} MiB a process, and CUDA's context takes {_device.context_bytes >> 20} MiB"
        )
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(min(1.0, left / total))


def _memory_bytes() -> int:
    """Return the device memory that this process has used at most; 0 on the CPU."""
    import torch

    return _device.context_bytes and _device.context_bytes + torch.cuda.max_memory_reserved()


def _spares_memory() -> bool:
    """Keep copies on the host from now on, and free the device's memory. Returns False where that is so already."""
    if _device.spare or session().device == "cpu":
        return False
    _device.spare = True
    _release()
    return True


def prepare(payload: bytes) -> bytes:
    """Entry point: `PrepareJob` → `Prepared`: make the inputs, run the reference, and time it if requested.

    Raises `WorkloadError` if the memory does not suffice for that.
    """
    job, short = msgspec.msgpack.decode(payload, type=PrepareJob), ""
    try:
        with workload().placed():
            _fit_arguments(job.params, job.roles, anew=True)
    except Exception as error:
        if kind_of(error) != "out_of_memory":
            raise
        short = in_one_line(error)
    if short:  # not in the handler: the error's frames hold what was made
        if _spares_memory():
            return prepare(payload)
        what, remedy = f"the memory of {session().device}", "end other programs there"
        if (limit := session().memory_bytes) is not None:
            what, remedy = f"memory_limit, {limit >> 20} MiB for this process,", "allow more"
        told = (
            f"Workload {workload().name}: {what} does not suffice for the inputs and the reference: make the problem "
            f"smaller, or {remedy} ({short})"
        )
        if others := _others():
            raise ShortOf(f"device memory: {told}; {others}")
        raise WorkloadError(told)
    _device.prepared, reference = job.params, None
    if job.timed and (timed := _timed_reference()) is not None:
        settings = session().benchmark
        name = f"Workload {workload().name}: {called(workload(), 'the reference')}"
        reference = _timing(ask(name, lambda: _samples(timed, settings, None)), timed)
    return msgspec.msgpack.encode(Prepared(reference, loaded_as()))


def measure(payload: bytes) -> bytes:
    """Entry point: `MeasureJob` → `Measurement` or `Failure`."""
    return msgspec.msgpack.encode(_measured(msgspec.msgpack.decode(payload, type=MeasureJob)))


def _measured(job: MeasureJob) -> Measurement | Failure:
    artifact = job.artifact
    started = time.perf_counter()
    result: Measurement | Failure
    try:
        _fit_arguments(artifact.params, fitting(artifact.roles, job.roles), anew=not session().benchmark.cache_inputs)
        function = load(artifact)
    except LoadError as error:
        check_machine(error, message_of(error), but=OWN)
        result = Failure(artifact.index, "load", in_one_line(error), whole_message(error))
    except UsageError as error:
        if artifact.params == _device.prepared:
            raise  # the workload's mistake, not this candidate's
        result = Failure(artifact.index, "launch", message_of(error))
    except BaseException as error:
        check_machine(error, but=OWN)
        result = Failure(artifact.index, kind_of(error), in_one_line(error), whole_message(error))
    else:
        try:
            result = _checked_and_timed(artifact, function, started, job.best_ms)
        except WorkloadError:
            raise  # of the workload's check
        except BaseException as error:
            check_machine(error, but=OWN)
            result = _failed_call(error, artifact)
    if isinstance(result, Failure) and result.kind == "out_of_memory":
        if _spares_memory():
            return _measured(job)
        _release()
        limit, others = session().memory_bytes, _others()
        if limit is None or others:
            result = msgspec.structs.replace(result, doubt=others)
        else:
            message = f"memory_limit allows {limit >> 20} MiB in this process: {result.message}"
            result = msgspec.structs.replace(result, message=message)
    return result


def _failed_call(error: BaseException, artifact: Artifact) -> Failure:
    """Return the failure of a candidate whose call raised: that it wrote out of bounds says more, where that is so."""
    kind, message = kind_of(error), in_one_line(error)
    if kind == "launch" and _device.arguments is not None:
        with contextlib.suppress(Exception):  # the device may not answer any more
            if damage := _device.arguments.guards.damage():
                kind, message = "out_of_bounds", f"{damage}; then the call raised {message}"
    return Failure(artifact.index, kind, message, whole_message(error))


def bits(payload: bytes) -> bytes:
    """Entry point: `BitsJob` → `Bits`: call each artifact on inputs drawn with other seeds; nothing is judged."""
    job = msgspec.msgpack.decode(payload, type=BitsJob)
    _release()
    drawn = workload().inputs is None or isinstance(workload().inputs, DrawnInputs)
    found = [_digests(job, seed) for seed in (job.seeds if drawn else ())]
    return msgspec.msgpack.encode(Bits(tuple(tuple(one[n] for one in found) for n in range(len(job.artifacts)))))


def _digests(job: BitsJob, seed: int) -> list[str]:
    """Return the digest of each artifact's outputs for the inputs of one seed, which are freed then."""
    digests, arguments, made = list[str](), None, None
    for artifact in job.artifacts:
        form = artifact.params, fitting(artifact.roles, job.roles)
        if arguments is None or form != made:
            arguments, made = None, form  # its memory is free before new ones are made
            arguments = _arguments(*form, seed)
        arguments.fill_outputs(POISONS[0])
        load(artifact)(*arguments.values)
        _device.timer.synchronise()
        digests.append(arguments.digest())
        arguments.restore_inputs()
    return digests


def final(payload: bytes) -> bytes:
    """Entry point: `FinalJob` → `Finals`: all timed in turn, every round in another order, and then checked again."""
    job = msgspec.msgpack.decode(payload, type=FinalJob)
    calls: list[Timed] = []
    kept: dict[Any, KernelArguments] = {}
    for artifact in job.artifacts:  # they may differ in their parameters
        form = artifact.params, fitting(artifact.roles, job.roles)
        if form not in kept:
            kept[form] = _fit_arguments(*form)
        arguments = kept[form]
        call = functools.partial(load(artifact), *arguments.values)
        call()
        _device.timer.synchronise()
        calls.append(_timed(call, arguments.restorer(arguments.restore_inputs())))
    if (timed_reference := _timed_reference()) is not None:
        calls.append(timed_reference)
    samples = _device.timer.interleaved(calls, job.rounds, session().benchmark.n_warmup)
    entries = [FinalEntry(a.index, _timing(s, c)) for a, s, c in zip(job.artifacts, samples, calls, strict=False)]
    failures = []
    for artifact, timed in zip(job.artifacts, calls, strict=False):
        arguments = kept[artifact.params, fitting(artifact.roles, job.roles)]
        if _spoilt(arguments):  # by one of them, while all were timed
            _expecting(arguments)
        arguments.guards.renew()  # the candidate's own call shows that it was this one
        arguments.restore_inputs()
        wrong, _ = _called_and_judged(timed, arguments, POISONS[::-1])
        if wrong is not None:
            failures.append(Failure(artifact.index, wrong.kind, f"{wrong.message}{AFTER_TIMING}"))
        arguments.restore_inputs()
    reference = _timing(samples[-1], calls[-1]) if timed_reference is not None else None
    return msgspec.msgpack.encode(Finals(tuple(entries), reference, tuple(failures), _memory_bytes()))


def _fit_arguments(params: tuple[KernelParam, ...], roles: Roles, *, anew: bool = False) -> KernelArguments:
    """Make the inputs, and have the reference run, unless the candidate before left what this one needs."""

    def fits(known: KernelArguments) -> bool:
        return (known.params, known.roles) == (params, roles) and not _spoilt(known)

    if anew or _device.arguments is None or not fits(_device.arguments):
        _device.arguments = None  # its memory is free before new ones are made
        _device.arguments = _expecting(_arguments(params, roles))
    return _device.arguments


def _expecting(arguments: KernelArguments) -> KernelArguments:
    if workload().reference is not None:
        arguments.expected = expected_outputs(workload(), arguments)
    arguments.seal = arguments.evidence()
    return arguments


def _spoilt(arguments: KernelArguments) -> bool:
    """Tell whether a candidate has changed what candidates are judged by."""
    return session().benchmark.check and arguments.evidence() != arguments.seal


def _arguments(params: tuple[KernelParam, ...], roles: Roles, seed: int = 0) -> KernelArguments:
    where = "cpu" if session().device == "cpu" else "cuda"
    return KernelArguments(workload(), params, roles, where, seed, spare=_device.spare)


def _timed_reference() -> Timed | None:
    """Return the call of the reference; None where there is none, or where it judges."""
    work, arguments = workload(), _device.arguments
    if work.reference is None or arguments is None or arguments.expected is None:
        return None
    fresh = arguments.fresh()
    return _timed(functools.partial(work.reference, *[fresh[i] for i in taken(work, arguments)]))


def _timed(call: Callable[[], Any], before: Callable[[], None] | None = None) -> Timed:
    return Timed(call, before, warm=session().benchmark.l2 == "warm")


def _checked_and_timed(
    artifact: Artifact, function: Callable[..., None], started: float, best_ms: float | None
) -> Measurement | Failure:
    arguments, settings = _device.arguments, session().benchmark
    assert arguments is not None
    call = functools.partial(function, *arguments.values)
    arguments.guards.renew()
    wrong, worst = _called_and_judged(Timed(call), arguments, POISONS)
    bits = "" if wrong else arguments.digest()
    changed = arguments.restore_inputs()
    if wrong is not None:
        return Failure(artifact.index, wrong.kind, wrong.message)
    timed = _timed(call, arguments.restorer(changed))
    timing = _timing(_samples(timed, settings, best_ms if settings.adaptive else None), timed)
    wrong, worst_again = _called_and_judged(timed, arguments, POISONS[::-1])
    repeats = wrong is None and arguments.digest() == bits
    arguments.restore_inputs()
    if wrong is not None:
        return Failure(artifact.index, wrong.kind, f"{wrong.message}{AFTER_TIMING}")
    if worst is not None and worst_again is not None:
        worst = max(worst, worst_again)
    checked = settings.check and (workload().reference is not None or workload().check is not None)
    return Measurement(
        artifact.index,
        timing,
        checked,
        worst,
        _since(started),
        tuple(sorted(changed)),
        arguments.set_up,
        bits=bits,
        repeats=repeats,
        memory_bytes=_memory_bytes(),
    )


def _called_and_judged(
    timed: Timed, arguments: KernelArguments, poisons: Sequence[int]
) -> tuple[Mismatch | None, float | None]:
    """Call on poisoned outputs; tell what is wrong with what was written since the guards were renewed.

    What still holds the first of `poisons` may have been written so: then it is called again, on the next.
    """
    kept: dict[int, Any] | None = None
    for poison in poisons:
        arguments.fill_outputs(poison)
        if timed.before is not None:
            timed.before()
        timed.call()
        _device.timer.synchronise()
        if damage := arguments.guards.damage():
            return Mismatch("out_of_bounds", damage), None
        if not session().benchmark.check:
            return None, None
        if not (kept := arguments.kept(poison, kept)):
            break
        if poison != poisons[-1]:
            arguments.restore_inputs()
    if _spoilt(arguments):
        return Mismatch("out_of_bounds", OVERWRITTEN), None
    found = judged(workload(), arguments, arguments.expected, kept or {})
    if workload().check is not None:  # it may write into what it gets
        arguments.seal = arguments.evidence()
    return found


def _samples(timed: Timed, settings: BenchmarkSettings, best_ms: float | None) -> list[float]:
    """Take samples until the candidate is known well enough. The checked call was a first warm-up."""
    timer, factor = _device.timer, settings.early_stop_factor
    n_warmup, n_repeat = settings.n_warmup, settings.n_repeat
    if settings.warmup_ms is not None or settings.rep_ms is not None:
        n_warmup, n_repeat = counts(settings, statistics.median(timer.samples(timed, 1, PROBE)))
    if best_ms is not None:
        # One call more tells apart what is plainly slow; who passes is warmed up as anyone else.
        probe = timer.samples(timed, min(n_warmup, 1), min(PROBE, n_repeat))
        if still_wanted(probe, n_repeat, best_ms, factor=factor) == 0:
            return probe
        n_warmup = max(0, n_warmup - 1 - len(probe))
    found: list[float] = []
    while more := still_wanted(found, n_repeat, best_ms, factor=factor, until_known=settings.adaptive):
        found += timer.samples(timed, n_warmup, more)
        n_warmup = 0
    return found


def _since(started: float) -> float:
    return round(time.perf_counter() - started, 4)


def _timing(samples_us: Sequence[float], timed: Timed) -> Timing:
    conditions = _device.observer.now() if _device.observer is not None else None
    return Timing.of(samples_us, _device.timer.method(timed), conditions)


def _release() -> None:
    import gc

    import torch

    _device.arguments = None
    gc.collect()
    if session().device != "cpu":
        torch.cuda.empty_cache()


def _others() -> str:
    """Say how much of the device's memory others use, and who; empty where that is little, or leaves the limit free."""
    import torch

    if _device.observer is None:
        return ""
    (free, total), own, limit = torch.cuda.mem_get_info(), torch.cuda.memory_reserved(), session().memory_bytes
    if limit is not None and free + own + _device.context_bytes >= limit:
        return ""
    others, who = total - free - own - OWN_CONTEXT_BYTES, holders(_device.observer.uuid)
    return f"other processes use about {others >> 20} MiB of the device's memory ({who})" if others > 256 << 20 else ""
