"""The fork server of a run: one that is parked, a session of a resident server that fits, or a fresh one."""

from __future__ import annotations

from atune.local.entry_points import PRELOAD
from atune.local.workers import server_env
from atune.processes.resident_client import NoSession, found, session
from atune.processes.server import ForkServerProcess, parked
from atune.system.folders import server_folder


async def fork_server(kind: tuple[object, ...]) -> ForkServerProcess:
    """Return a fork server: the parked one of this `kind`, else a session, else a fresh one. Its `kind` says which.

    Cancelled, it leaves no process behind.
    """
    if (process := parked.take(kind)) is not None:
        return process
    if (place := found()) is None:
        return fresh_server()
    try:
        return await session(place, PRELOAD, *server_folder(), env=server_env())
    except NoSession as error:
        process = fresh_server()
        process.kind = f"a fresh one, because the resident server cannot be used: {error}"
        return process


def fresh_server() -> ForkServerProcess:
    """Start a fork server, which imports for itself."""
    return ForkServerProcess(PRELOAD, *server_folder(), env=server_env())
