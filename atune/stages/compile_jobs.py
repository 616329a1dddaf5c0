"""Entry points of compile workers: elaborate candidates, ask a prior, lower one, build a group, prove a winner.

Bytes in, bytes out.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

import msgspec

from atune.engine.search.prior import asked
from atune.errors import message_of, name_of
from atune.model.artifact import Elaborated, Failure, Lowered, Proof
from atune.model.candidate import Candidate, thaw
from atune.model.jobs import BuildJob, ElaborateJob, Explained, ExplainJob, LowerJob, ProveJob, RankJob
from atune.stages.accelerators import registry
from atune.stages.compile import codegen, lowering, plain
from atune.stages.compile.facts import foreseen
from atune.stages.compile.keys import lowered_before
from atune.stages.compile.steps import backend_context
from atune.stages.frontend.frontend import elaborated
from atune.stages.session.session import session, workload
from atune.workers.system.resources import check_machine
from atune.workload.definition import check_config
from atune.workload.pickling import load_function
from atune.workload.source_locations import detail_of

T = TypeVar("T")

SLICE_S = 0.25
"""Seconds after which elaborating answers with the results so far: little is lost if a later candidate hangs."""


def elaborate(payload: bytes) -> bytes:
    """Elaborate candidates: `ElaborateJob` → list of `Elaborated` or `Failure`.

    It has an answer for each of the first of them: one at least, and as many as come in `SLICE_S`.
    """
    ends, answers = time.monotonic() + SLICE_S, list[Elaborated | Failure]()
    for candidate in msgspec.msgpack.decode(payload, type=ElaborateJob).candidates:
        answers.append(_guarded(candidate, _elaborated))
        if time.monotonic() > ends:
            break
    return msgspec.msgpack.encode(answers)


def _elaborated(candidate: Candidate) -> Elaborated:
    work = workload()
    function = elaborated(work.kernel, work.arguments, candidate.config, backend_context().target)
    return Elaborated(candidate.index, foreseen(function, session().target.arch))


def rank(payload: bytes) -> bytes:
    """Ask a user's prior: `RankJob` → its answers, by index. Raises `UsageError`."""
    job = msgspec.msgpack.decode(payload, type=RankJob)
    workload()  # its folders are where the prior's modules are looked for
    found = asked(load_function(job.prior), {i: (thaw(config), facts) for i, (config, facts) in job.candidates.items()})
    return msgspec.msgpack.encode(found)


def lower(payload: bytes) -> bytes:
    """Lower a candidate: `LowerJob` → `Lowered` or `Failure`.

    A kernel that an earlier run lowered is not lowered again if the artifact store has its library.
    """
    job, steps = msgspec.msgpack.decode(payload, type=LowerJob), registry.compose(session().accelerators)
    known: Callable[[str], Lowered | None] = (lambda key: None) if job.anew else lowered_before
    return msgspec.msgpack.encode(_guarded(job.candidate, lambda one: lowering.lower(one, steps, known)))


def build(payload: bytes) -> bytes:
    """Build a group: `BuildJob` → list of `Artifact` or `Failure`, one a member.

    A group of several that fails raises: nobody knows yet whose fault it is. A group of one answers with a `Failure`.
    """
    job = msgspec.msgpack.decode(payload, type=BuildJob)
    fitting = [name for name in session().accelerators if job.service or not registry.named(name).served]
    return msgspec.msgpack.encode(codegen.answer(job.group, job.path, registry.compose(fitting)))


def prove(payload: bytes) -> bytes:
    """Prove a candidate's library plain: `ProveJob` → `Proof` or `Failure`."""
    job = msgspec.msgpack.decode(payload, type=ProveJob)

    def work(candidate: Candidate) -> Proof | Failure:
        return plain.prove(candidate, job.measured, job.path, job.lowered)

    return msgspec.msgpack.encode(_guarded(job.candidate, work))


def explain(payload: bytes) -> bytes:
    """Compile a configuration plainly, and read its facts: `ExplainJob` → `Explained` or `Failure`.

    Raises `SpaceError` for a name that the kernel does not take.
    """
    job = msgspec.msgpack.decode(payload, type=ExplainJob)
    check_config(workload(), job.candidate.config)

    def work(candidate: Candidate) -> Explained | Failure:
        return plain.explain(msgspec.structs.replace(job, candidate=candidate))

    return msgspec.msgpack.encode(
        _guarded(msgspec.structs.replace(job.candidate, config=thaw(job.candidate.config)), work)
    )


def _guarded(candidate: Candidate, work: Callable[[Candidate], T]) -> T | Failure:
    """Do `work`. An error of the kernel or tilelang is the candidate's failure, except a lack of resources."""
    try:
        return work(candidate)
    except BaseException as error:  # in a worker nobody else raises: interrupts and cancellations are the kernel's too
        check_machine(error)
        return Failure(candidate.index, "lower", _one_line(error), detail_of(error))


def _one_line(error: BaseException) -> str:
    lines = [line for line in message_of(error).strip().splitlines() if line.strip()]
    # TVM puts the C++ stack first and the message last.
    text = f"{name_of(error)}: {lines[-1].strip() if lines else ''}"[:500]
    if isinstance(error, OSError) and "source code" in text:  # inspect's words
        return f"{text}; a kernel that exec made needs its text, too: Workload(source=...)"
    return text
