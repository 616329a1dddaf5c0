"""Entry points of workers, named after their jobs. Each entry point takes bytes and returns bytes.

The entry points for a session and its space are in `session`, and the entry points for devices are in `gpu`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import msgspec

from atune.errors import in_one_line
from atune.model.artifact import Artifact, Elaborated, Failure
from atune.model.candidate import FOREIGN, Candidate
from atune.model.device import DeviceInfo, Target
from atune.model.jobs import (
    BitsJob,
    BuildJob,
    CompareJob,
    ElaborateJob,
    FinalJob,
    LowerJob,
    MeasureJob,
    PrepareJob,
    RolesJob,
    Started,
)
from atune.model.settings import CompileSettings
from atune.stages import benchmark, cicc, lowering, strict, tilelang
from atune.stages.bits import BitsObserver, digests
from atune.stages.clocks import ClocksObserver
from atune.stages.codegen import answer, backend_context, by_nvcc
from atune.stages.facts import foreseen
from atune.stages.foreign import Refused
from atune.stages.frontend import elaborated, roles_of
from atune.stages.gpu import find_devices, holders, kind_of
from atune.stages.memory import MemoryObserver
from atune.stages.session import session, workload
from atune.workers.resources import ShortOf, check_machine
from atune.workload.source_locations import detail_of
from atune.workload.workload import ConfigCheck

T = TypeVar("T")

SWITCHED_OFF = "cicc is switched off"
SLICE_S = 0.25
"""Seconds after which `elaborate` returns its results so far, so that few results are lost if a later candidate
hangs."""


# ---- a compile worker


def discover(payload: bytes) -> bytes:
    """Resolve a target: msgpack of (target, device names, `CompileSettings`) → `Discovery`.

    Raises `TargetError` if the target's devices or compilers are missing, and `UsageError` if tilelang lacks names that
    atune uses.
    """
    text, wanted, settings = msgspec.msgpack.decode(payload, type=tuple[str | Target, tuple[str, ...], CompileSettings])
    discovery = find_devices(text, wanted)
    tools, why = cicc.tools_or_reason(discovery.target) if settings.cicc else ("", SWITCHED_OFF)
    discovery = msgspec.structs.replace(discovery, tools=tools, no_cicc=why, untested=tilelang.untested())
    return msgspec.msgpack.encode(discovery)


def elaborate(payload: bytes) -> bytes:
    """Elaborate candidates: `ElaborateJob` → list of `Elaborated` or `Failure`.

    The answer covers as many candidates as fit into `SLICE_S`, but at least the first candidate. If a later candidate
    fails, the answer ends before that candidate. The next job tries that candidate again, perhaps in a new process.
    """
    ends, answers = time.monotonic() + SLICE_S, list[Elaborated | Failure]()
    job = msgspec.msgpack.decode(payload, type=ElaborateJob)
    for candidate in job.candidates:
        outcome = _guarded(candidate, _digested if job.digests else _elaborated)
        if answers and isinstance(outcome, Failure):
            break
        answers.append(outcome)
        if time.monotonic() > ends:
            break
    return msgspec.msgpack.encode(answers)


def _elaborated(candidate: Candidate) -> Elaborated:
    return Elaborated(candidate.index, foreseen(_function(candidate), session().target.arch))


def _digested(candidate: Candidate) -> Elaborated:
    return Elaborated(candidate.index, ir_digest=lowering.ir_digest(_function(candidate)))


def _function(candidate: Candidate) -> Any:
    work = workload()
    return elaborated(work.kernel, work.kernel_arguments, work.as_written(candidate.config), backend_context().target)


def roles(payload: bytes) -> bytes:
    """Find the roles of a kernel's parameters: `RolesJob` → `Roles` or `Failure`. Raises `WorkloadError`."""
    work, function = workload(), _guarded(msgspec.msgpack.decode(payload, type=RolesJob).candidate, _function)
    if isinstance(function, Failure):
        return msgspec.msgpack.encode(function)
    with work.placed():
        return msgspec.msgpack.encode(roles_of(function, work.out_idx, work.zero, work.restore, work.like_tilelang))


def lower(payload: bytes) -> bytes:
    """Lower a candidate: `LowerJob` → `Lowered` or `Failure`.

    Unless the job says so, a kernel that an earlier run lowered is not lowered again. Raises `SpaceError` if the
    configuration does not fit the kernel, which can happen if the configuration is not in the space.
    """
    job = msgspec.msgpack.decode(payload, type=LowerJob)
    if FOREIGN not in job.candidate.config:
        ConfigCheck(workload()).check(job.candidate.config, f"Workload {workload().name}")
    lowered = _guarded(job.candidate, lambda given: cicc.with_use(lowering.lower(given, anew=job.anew)))
    return msgspec.msgpack.encode(lowered)


def build(payload: bytes) -> bytes:
    """Build a group: `BuildJob` → list with an `Artifact` or a `Failure` for each member.

    If the only member of a group fails, the answer has its `Failure`. If a larger group fails, its error is raised.
    """
    job = msgspec.msgpack.decode(payload, type=BuildJob)
    compilers = {"cicc": cicc.compile, "nvcc": by_nvcc, "both": cicc.comparing(job.group)}
    built = answer(job.group, job.path, compilers[job.by])
    pairs = zip(job.group, built, strict=True)
    return msgspec.msgpack.encode([cicc.with_state(low, a) if isinstance(a, Artifact) else a for low, a in pairs])


def compare(payload: bytes) -> bytes:
    """Compare cicc's library for a candidate with nvcc's library: `CompareJob` → `Compared` or `Failure`."""
    job = msgspec.msgpack.decode(payload, type=CompareJob)
    return msgspec.msgpack.encode(_guarded(job.candidate, lambda given: cicc.compared(given, job.built, job.path)))


def _guarded(candidate: Candidate, work: Callable[[Candidate], T]) -> T | Failure:
    """Do `work`. If `work` raises, return the candidate's failure, but raise `ShortOf` if the machine lacks a
    resource."""
    try:
        return work(candidate)
    except BaseException as error:  # nothing interrupts or cancels a worker, so any error is the kernel's
        check_machine(error, but="files")  # any candidate of this process may have opened the files
        if isinstance(error, Refused):
            return Failure(candidate.index, "refused", str(error))
        return Failure(candidate.index, "lower", _message(error), detail_of(error))


def _message(error: BaseException) -> str:
    text = in_one_line(error)
    if isinstance(error, OSError) and "source code" in text:  # the message of `inspect`
        return (
            f"{text}: put the kernel into a file, because code that is typed, piped or given to python -c has no "
            "source. A kernel that exec defines also needs its text: Workload(source=...)"
        )
    return text


# ---- a device's process: all work is on its own stream


def open_device(payload: bytes) -> bytes:
    """Begin a run: `DeviceInfo` → `Started`. Raises `ShortOf` if the device has too little memory for a context."""
    info = msgspec.msgpack.decode(payload, type=DeviceInfo)
    try:
        uuid = benchmark.begin(info)
    except Exception as error:
        if kind_of(error) != "out_of_memory":
            raise
        raise ShortOf(f"device memory: {in_one_line(error)} ({holders(info.uuid)})") from error
    observers = (BitsObserver(), MemoryObserver(uuid), ClocksObserver(uuid)) if uuid else (BitsObserver(),)
    benchmark.device.observers = observers
    return msgspec.msgpack.encode(Started(info, benchmark.device.stream.handle))


def rest_device(_: bytes) -> bytes:
    """Forget the run, and free its memory, because another run uses the process next."""
    benchmark.release()
    benchmark.device.prepared, benchmark.device.copies_on_host = (), False
    return b""


def _answered(do: Callable[[Any], Any], kind: type[Any], payload: bytes) -> bytes:
    """Decode a job of type `kind` from `payload`, do the job, and encode the answer."""
    job = msgspec.msgpack.decode(payload, type=kind)
    with benchmark.device.stream.current():
        return msgspec.msgpack.encode(do(job))


prepare = partial(_answered, benchmark.prepare, PrepareJob)
measure = partial(_answered, benchmark.measure, MeasureJob)
bits = partial(_answered, digests, BitsJob)
final = partial(_answered, lambda job: (benchmark if session().allow is None else strict).final(job), FinalJob)
