"""A worker process's state, sent once when the worker starts, and its answers about workload and space.

The workload's file and constraints are user code. Calls that list a space are short, so that a deadline for each call
distinguishes a function that hangs from many that take time.
"""

from __future__ import annotations

import faulthandler
import sys
import tempfile
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager

import msgspec

from atune.model.candidate import Candidate, Config
from atune.workers.messages import LoadSpace, Session, SpacePart
from atune.workload.fingerprint import fingerprint, keep_texts, written_since
from atune.workload.pickling import FileRef, chosen, load
from atune.workload.workload import Candidates, Workload, WorkloadSpec, head


class _SessionState:
    session: Session
    workload: Workload | None = None
    fingerprint = ""


_state = _SessionState()


def begin(payload: bytes) -> bytes:
    """Entry point: store the session. Return the fingerprint of its workload where that is to be loaded now."""
    _state.session = msgspec.msgpack.decode(payload, type=Session)
    _state.workload = None
    tempfile.tempdir = None  # the server may have asked for it; this run has a folder of its own
    return loaded_as().encode() if _state.session.load else b""


def written(payload: bytes) -> bytes:
    """Entry point: return the files of imported modules that were written after a time, as msgpack."""
    return msgspec.msgpack.encode(written_since(msgspec.msgpack.decode(payload, type=float)))


def session() -> Session:
    return _state.session


def workload() -> Workload:
    if _state.workload is None:
        _state.workload = load(_state.session.ref)
        _state.fingerprint = fingerprint(_state.workload)
        keep_texts()
    return _state.workload


def loaded_as() -> str:
    """Return the fingerprint of the session's workload as it was loaded here."""
    workload()
    return _state.fingerprint


PART_S = 0.5
"""Seconds after which a call answers with the results so far."""
PART = 2048
"""Candidates that one call lists at most: the program decodes them in its event loop."""
EARLY = 0.9
"""Share of a call's deadline after which the worker writes where it hangs; the caller then ends it."""


class _Space:
    workload: Workload
    spec: WorkloadSpec
    candidates: Candidates | None = None
    listed: Iterator[Candidate | None]


_space = _Space()


def load_space(payload: bytes) -> bytes:
    """Load a workload (`LoadSpace`) to list its space."""
    asked = msgspec.msgpack.decode(payload, type=LoadSpace)
    with _telling(asked.deadline_s):
        _space.workload, _space.candidates = load(asked.ref), None
        origin = chosen(asked.ref).origin if isinstance(asked.ref, FileRef) else ""
        _space.spec = asked.known or head(_space.workload, origin)
        return b""


def list_space(payload: bytes) -> bytes:
    """Continue to list the space: msgpack of (seed, deadline) → the next `SpacePart`."""
    seed, deadline_s = msgspec.msgpack.decode(payload, type=tuple[int, float])
    with _telling(deadline_s), _space.workload.placed():
        if _space.candidates is None:
            _space.candidates = Candidates(_space.workload, seed)
            _space.listed = _space.candidates.listed()
        return msgspec.msgpack.encode(_next_part(_space.candidates))


def _next_part(candidates: Candidates) -> SpacePart:
    """List what comes in `PART_S`, and `PART` at most; the description comes with the last part."""
    ends, found = time.monotonic() + PART_S, list[Config]()
    for candidate in _space.listed:
        found += [] if candidate is None else [candidate.config]
        if len(found) == PART or time.monotonic() > ends:
            return SpacePart(tuple(found), None)
    return SpacePart(tuple(found), candidates.complete(_space.spec))


@contextmanager
def _telling(deadline_s: float) -> Generator[None, None, None]:
    """Have the worker write its stack to stderr shortly before the deadline, also where a C function holds the GIL."""
    faulthandler.dump_traceback_later(EARLY * deadline_s, file=sys.__stderr__ or 2)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()
