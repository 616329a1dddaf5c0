"""A worker process's state, sent once when the worker starts, and its answers about the workload and its space.

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
from itertools import islice

import msgspec

from atune.model.candidate import Candidate, Config
from atune.workers.processes.messages import LoadSpace, Session, SpacePart
from atune.workload.fingerprint import fingerprint, keep_texts, written_since
from atune.workload.pickling import FileRef, WorkloadRef, chosen, load
from atune.workload.workload import Candidates, Workload, WorkloadSpec, head, survey


class _SessionState:
    session: Session
    workload: Workload | None = None
    fingerprint = ""


_state = _SessionState()


def begin(payload: bytes) -> bytes:
    """Entry point: store the session. The workload is loaded on first use."""
    _state.session = msgspec.msgpack.decode(payload, type=Session)
    _state.workload = None
    tempfile.tempdir = None  # the server may have asked for it; this run has a folder of its own
    return b""


def load_workload(_: bytes) -> bytes:
    """Entry point: load the session's workload now, so that no candidate's deadline has to cover it.

    Returns the fingerprint of what was loaded.
    """
    return loaded_as().encode()


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


SLICE_S = 0.5
"""Seconds after which a call answers with the results so far."""
CHUNK = 128
"""Candidates between two checks of the clock."""
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
    """Load a workload (`LoadSpace`) to list its space, or to look configurations up."""
    asked = msgspec.msgpack.decode(payload, type=LoadSpace)
    with _telling(asked.deadline_s):
        _space.workload, _space.candidates = load(asked.ref), None
        _space.spec = asked.known or head(_space.workload, _origin(asked.ref))
        return b""


def _origin(ref: WorkloadRef) -> str:
    return (chosen(ref) if isinstance(ref, FileRef) else ref).origin


def list_space(payload: bytes) -> bytes:
    """Continue to list the space: msgpack of (seed, deadline) → the next `SpacePart`."""
    seed, deadline_s = msgspec.msgpack.decode(payload, type=tuple[int, float])
    with _telling(deadline_s):
        if _space.candidates is None:
            _space.candidates = Candidates(_space.workload, seed)
            _space.listed = _space.candidates.listed()
        return msgspec.msgpack.encode(_next_part(_space.candidates))


def _next_part(candidates: Candidates) -> SpacePart:
    """List what comes in `SLICE_S`, and `PART` at most; the description comes with the last part."""
    ends, found = time.monotonic() + SLICE_S, list[Config]()
    while time.monotonic() < ends and len(found) < PART:
        chunk = list(islice(_space.listed, CHUNK))
        found += [candidate.config for candidate in chunk if candidate is not None]
        if len(chunk) < CHUNK:
            return SpacePart(tuple(found), candidates.complete(_space.spec))
    return SpacePart(tuple(found), None)


@contextmanager
def _telling(deadline_s: float) -> Generator[None, None, None]:
    """Have the worker write its stack to stderr shortly before the deadline, also where a C function holds the GIL."""
    faulthandler.dump_traceback_later(EARLY * deadline_s, file=sys.__stderr__ or 2)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()


def survey_space(payload: bytes) -> bytes:
    """Load the workload that `payload` (`FileRef`) names and return its `SpaceSurvey`. Raises `SpaceError`."""
    return msgspec.msgpack.encode(survey(load(msgspec.msgpack.decode(payload, type=FileRef))))
