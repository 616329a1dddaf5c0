"""Entry points of compile workers: discover, elaborate candidates, find roles, lower, build a group, compare.

Bytes in, bytes out. To compare a library, nvcc compiles it again, as tilelang does.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from atune.errors import in_one_line
from atune.model.artifact import Artifact, Compared, Elaborated, Failure
from atune.model.candidate import Candidate
from atune.model.device import Target
from atune.model.jobs import BuildJob, CompareJob, ElaborateJob, LowerJob, RolesJob
from atune.model.settings import CompileSettings
from atune.stages import cicc, elf, lowering, tilelang
from atune.stages.cicc_server import CiccError
from atune.stages.codegen import answer, backend_context, by_nvcc
from atune.stages.facts import foreseen
from atune.stages.frontend import elaborated, roles_of
from atune.stages.gpu import find_devices
from atune.stages.session import session, workload
from atune.workers.artifact_store import StateCheck, remember, state_of
from atune.workers.resources import check_machine
from atune.workload.source_locations import detail_of
from atune.workload.workload import ConfigCheck

T = TypeVar("T")

SWITCHED_OFF = "it is switched off"
SLICE_S = 0.25
"""Seconds after which elaborating answers with the results so far: little is lost if a later candidate hangs."""


def discover(payload: bytes) -> bytes:
    """Resolve a target: msgpack of (target, device names, `CompileSettings`) → `Discovery`.

    Raises `TargetError` if the target's devices or compilers are missing, and `UsageError` for a tilelang that lacks
    what atune takes from it.
    """
    text, wanted, settings = msgspec.msgpack.decode(payload, type=tuple[str | Target, tuple[str, ...], CompileSettings])
    found = find_devices(text, wanted)
    tools, why = cicc.tools_or_why(found.target) if settings.cicc else ("", SWITCHED_OFF)
    found = msgspec.structs.replace(found, tools=tools, no_cicc=why, untested=tilelang.untested())
    return msgspec.msgpack.encode(found)


def elaborate(payload: bytes) -> bytes:
    """Elaborate candidates: `ElaborateJob` → list of `Elaborated` or `Failure`.

    It has an answer for each of the first of them: one at least, and as many as come in `SLICE_S`. One that fails
    after others is left for the next time, when it may be the first in its process.
    """
    ends, answers = time.monotonic() + SLICE_S, list[Elaborated | Failure]()
    job = msgspec.msgpack.decode(payload, type=ElaborateJob)
    for candidate in job.candidates:
        one = _guarded(candidate, _digested if job.digests else _elaborated)
        if answers and isinstance(one, Failure):
            break
        answers.append(one)
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
    work, found = workload(), _guarded(msgspec.msgpack.decode(payload, type=RolesJob).candidate, _function)
    if isinstance(found, Failure):
        return msgspec.msgpack.encode(found)
    with work.placed():
        return msgspec.msgpack.encode(roles_of(found, work.out_idx, work.zero, work.restore, work.like_tilelang))


def lower(payload: bytes) -> bytes:
    """Lower a candidate: `LowerJob` → `Lowered` or `Failure`.

    A kernel that an earlier run lowered is not lowered again if the artifact store has its library. Raises
    `SpaceError` for a configuration that does not fit the kernel, as one may that no space lists.
    """
    job = msgspec.msgpack.decode(payload, type=LowerJob)
    ConfigCheck(workload()).check(job.candidate.config, f"Workload {workload().name}")
    lowered = _guarded(job.candidate, lambda one: cicc.with_use(lowering.lower(one, anew=job.anew)))
    return msgspec.msgpack.encode(lowered)


def build(payload: bytes) -> bytes:
    """Build a group: `BuildJob` → list of `Artifact` or `Failure`, one a member.

    A group of several that fails raises: nobody knows yet whose fault it is. A group of one answers with a `Failure`.
    """
    job = msgspec.msgpack.decode(payload, type=BuildJob)
    built = answer(job.group, job.path, cicc.compile if job.service else by_nvcc)
    pairs = zip(job.group, built, strict=True)
    return msgspec.msgpack.encode([cicc.in_state(of, it) if isinstance(it, Artifact) else it for of, it in pairs])


def compare(payload: bytes) -> bytes:
    """Compare what cicc built with what nvcc makes: `CompareJob` → `Compared` or `Failure`."""
    job = msgspec.msgpack.decode(payload, type=CompareJob)
    return msgspec.msgpack.encode(_guarded(job.candidate, lambda one: compared(one, job.built, job.path)))


def _guarded(candidate: Candidate, work: Callable[[Candidate], T]) -> T | Failure:
    """Do `work`. An error of the kernel or tilelang is the candidate's failure, except a lack of resources."""
    try:
        return work(candidate)
    except BaseException as error:  # in a worker nobody else raises: interrupts and cancellations are the kernel's too
        check_machine(error, but="files")  # the candidate opened them, or another whose process is not believed
        return Failure(candidate.index, "lower", _message(error), detail_of(error))


def _message(error: BaseException) -> str:
    text = in_one_line(error)
    if isinstance(error, OSError) and "source code" in text:  # the message of `inspect`
        return (
            f"{text}: put the kernel into a file, because what is typed, piped or given to python -c has no source; a "
            "kernel that exec made needs its text, too: Workload(source=...)"
        )
    return text


def compared(candidate: Candidate, built: Artifact, path: str) -> Compared | Failure:
    """Elaborate, lower, generate, compile by nvcc and link `candidate`, and compare with `built`.

    The result is kept for the compiler state of `built`, if this machine is in that state. Raises what elaborating and
    lowering raise. Returns a `Failure` if compilers refuse the source.
    """
    lowered = cicc.with_use(lowering.lower(candidate))
    (plain,) = answer([lowered], path)
    if isinstance(plain, Failure):
        return plain
    found = difference(built, plain)
    with contextlib.suppress(OSError, CiccError, ValueError):  # then a later run compares again
        files, headers = cicc.headers_of(plain)
        if state_of(session().tools, lowered.use, headers) == built.state:
            remember(session().tools, lowered.use, StateCheck(files, headers, found))
    return Compared(candidate.index, found)


def difference(measured: Artifact, plain: Artifact) -> str:
    """Say how two libraries of one candidate differ; empty if sources and code sections are the same.

    Sources are those of device and host. For target ``c`` they decide alone, because g++ compiles both and nothing
    wraps it. The host's half of a CUDA library is compared only by its source.
    """
    if measured.source_key != plain.source_key:
        return "the generated source"
    if plain.target != "cuda":
        return ""
    own, other = (elf.kernels_code(Path(one.path).read_bytes(), one.symbol) for one in (measured, plain))
    if not other:
        return "the place of its code: the plain library has none under its name"
    if not own:
        return "the place of its code: the measured library has none under its name"
    for code in own:  # tvm decides which of several is loaded
        if code.keys() != other[0].keys():
            return f"sections of its code: {', '.join(sorted(code.keys() ^ other[0].keys()))}"
        if wrong := sorted(name for name in code if code[name] != other[0][name]):
            return f"the code of {', '.join(wrong)}"
    return ""
