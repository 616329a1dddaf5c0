"""Entry points of a worker that lists a workload's space. The workload's file and constraints are user code.

Calls are short, so that a deadline for each call distinguishes a function that hangs from many that take time.
"""

from __future__ import annotations

import faulthandler
import sys
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from itertools import islice

import msgspec

from atune.model.candidate import Candidate, Config, thaw
from atune.processes.messages import LoadSpace, LookUp, SpacePart
from atune.workload.kernel_defaults import Sought, locate
from atune.workload.listing import Candidates
from atune.workload.pickling import FileRef
from atune.workload.space_survey import survey
from atune.workload.workload import Workload, head, load

SLICE_S = 0.5
"""Seconds after which a call answers with the results so far."""
CHUNK = 128
"""Candidates between two checks of the clock."""
PART = 2048
"""Candidates that one call lists at most: the program decodes them in its event loop."""
EARLY = 0.9
"""Share of a call's deadline after which the worker writes where it hangs; the caller then ends it."""


class _State:
    workload: Workload
    candidates: Candidates | None = None
    listed: Iterator[Candidate | None]


_state = _State()


def load_space(payload: bytes) -> bytes:
    """Load a workload: `LoadSpace` → its `WorkloadSpec` without the space, or None if it was not requested."""
    asked = msgspec.msgpack.decode(payload, type=LoadSpace)
    with _telling(asked.deadline_s):
        _state.workload, _state.candidates = load(asked.ref), None
        spec = head(_state.workload, asked.ref.origin) if asked.described else None
        return msgspec.msgpack.encode(spec)


def list_space(payload: bytes) -> bytes:
    """Continue to list the space: msgpack of (seed, deadline) → the next `SpacePart`."""
    seed, deadline_s = msgspec.msgpack.decode(payload, type=tuple[int, float])
    with _telling(deadline_s):
        if _state.candidates is None:
            _state.candidates = Candidates(_state.workload, seed)
            _state.listed = _state.candidates.listed()
        return msgspec.msgpack.encode(_next_part(_state.candidates))


def _next_part(candidates: Candidates) -> SpacePart:
    """List what comes in `SLICE_S`, and `PART` at most; the description comes with the last part."""
    ends, found = time.monotonic() + SLICE_S, list[Config]()
    while time.monotonic() < ends and len(found) < PART:
        chunk = list(islice(_state.listed, CHUNK))
        found += [candidate.config for candidate in chunk if candidate is not None]
        if len(chunk) < CHUNK:
            return SpacePart(tuple(found), candidates.described())
    return SpacePart(tuple(found), None)


def look_up(payload: bytes) -> bytes:
    """Return which of some configurations the space has, or their neighbours: `LookUp` → list of configurations."""
    asked = msgspec.msgpack.decode(payload, type=LookUp)
    with _telling(asked.deadline_s):
        candidates = _state.candidates or Candidates(_state.workload)
        return msgspec.msgpack.encode(candidates.admitted(map(thaw, asked.configs), around=asked.around))


@contextmanager
def _telling(deadline_s: float) -> Generator[None, None, None]:
    """Have the worker write its stack to stderr shortly before the deadline, also where a C function holds the GIL."""
    faulthandler.dump_traceback_later(EARLY * deadline_s, file=sys.__stderr__ or 2)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()


def locate_kernel(payload: bytes) -> bytes:
    """Load what `payload` (`Sought`) names and return its `KernelSite`. Raises `WorkloadError`."""
    return msgspec.msgpack.encode(locate(msgspec.msgpack.decode(payload, type=Sought)))


def survey_space(payload: bytes) -> bytes:
    """Load the workload that `payload` (`FileRef`) names and return its `SpaceSurvey`. Raises `SpaceError`."""
    return msgspec.msgpack.encode(survey(load(msgspec.msgpack.decode(payload, type=FileRef))))
