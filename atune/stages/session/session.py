"""A worker process's state, sent once when the worker starts: the workload, the target and the settings."""

from __future__ import annotations

import tempfile

import msgspec

from atune.processes.messages import Session
from atune.workload.source_files import keep_texts
from atune.workload.workload import Workload, fingerprint, load


class _State:
    session: Session
    workload: Workload | None = None
    fingerprint = ""


_state = _State()


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
