"""The session that a worker process gets at its start, and the worker's answers about its workload and space.

The workload's file and constraints are user code. A space is listed in short calls, so a function that hangs exceeds
the deadline of its call, but a large space with slow functions does not.
"""

from __future__ import annotations

import faulthandler
import sys
import tempfile
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager

import msgspec

from atune.errors import WorkloadError
from atune.model.candidate import Candidate, Config
from atune.workers.messages import LoadSpace, Session, SpacePart
from atune.workers.resources import check_machine
from atune.workload.fingerprint import fingerprint, keep_texts, written_since
from atune.workload.pickling import FileRef, WorkloadRef, chosen, load
from atune.workload.workload import Candidates, Workload, WorkloadSpec, head


class _SessionState:
    session: Session
    workload: Workload | None = None
    fingerprint = ""


_state = _SessionState()


def begin(payload: bytes) -> bytes:
    """Entry point: store the session. If the session asks to load its workload, return the workload's fingerprint."""
    _state.session = msgspec.msgpack.decode(payload, type=Session)
    _state.workload = None
    tempfile.tempdir = None  # the server may have set it, but this run has its own folder
    return loaded_as().encode() if _state.session.load else b""


def written(payload: bytes) -> bytes:
    """Entry point: msgpack of a time → the files of imported modules that were written after this time."""
    return msgspec.msgpack.encode(written_since(msgspec.msgpack.decode(payload, type=float)))


def session() -> Session:
    return _state.session


def workload() -> Workload:
    if _state.workload is None:
        _state.workload = _loaded(_state.session.ref)
        _state.fingerprint = fingerprint(_state.workload)
        keep_texts()
    return _state.workload


def _loaded(ref: WorkloadRef) -> Workload:
    """Load a workload. Raises `WorkloadError`, or `ShortOf` if the machine lacks a resource."""
    try:
        return load(ref)
    except WorkloadError as error:
        check_machine(error)
        raise


def loaded_as() -> str:
    """Return the fingerprint of the session's workload, in the version that this process loaded."""
    workload()
    return _state.fingerprint


PART_S = 0.5
"""Seconds after which a call returns the results that it has so far."""
PART = 2048
"""Largest number of candidates that a call lists. The program decodes the candidates of a call in its event loop."""
EARLY = 0.9
"""Share of a call's deadline after which a worker writes its stack. The caller ends the worker at the deadline."""


class _Space:
    workload: Workload
    spec: WorkloadSpec
    candidates: Candidates | None = None
    listed: Iterator[Candidate | None]


_space = _Space()


def load_space(payload: bytes) -> bytes:
    """Load the workload of a `LoadSpace` job, whose space is listed next."""
    job = msgspec.msgpack.decode(payload, type=LoadSpace)
    with _writing_stack(job.deadline_s):
        _space.workload, _space.candidates = _loaded(job.ref), None
        origin = chosen(job.ref).origin if isinstance(job.ref, FileRef) else ""
        _space.spec = job.known or head(_space.workload, origin)
        return b""


def list_space(payload: bytes) -> bytes:
    """List the next part of the space: msgpack of (seed, deadline) → `SpacePart`."""
    seed, deadline_s = msgspec.msgpack.decode(payload, type=tuple[int, float])
    with _writing_stack(deadline_s), _space.workload.placed():
        if _space.candidates is None:
            _space.candidates = Candidates(_space.workload, seed)
            _space.listed = _space.candidates.listed()
        return msgspec.msgpack.encode(_next_part(_space.candidates))


def _next_part(candidates: Candidates) -> SpacePart:
    """List at most `PART` candidates, for at most `PART_S` seconds. The last part also describes the whole space."""
    ends, configs = time.monotonic() + PART_S, list[Config]()
    for candidate in _space.listed:
        configs += [] if candidate is None else [candidate.config]
        if len(configs) == PART or time.monotonic() > ends:
            return SpacePart(tuple(configs), None)
    return SpacePart(tuple(configs), candidates.complete(_space.spec))


@contextmanager
def _writing_stack(deadline_s: float) -> Generator[None, None, None]:
    """Make the worker write its stack to stderr shortly before the deadline, even if a C function holds the GIL."""
    faulthandler.dump_traceback_later(EARLY * deadline_s, file=sys.__stderr__ or 2)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()
