"""Who else uses a GPU while it measures, from NVML's list of processes."""

from __future__ import annotations

import os
import pwd
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from atune.processes.messages import Around, Neighbour, Neighbours
from atune.system.folders import SERVER_FOLDER


def neighbours(payload: bytes) -> bytes:
    """Entry point: `Neighbours` → `Around`; empty where NVML cannot tell."""
    question = msgspec.msgpack.decode(payload, type=Neighbours)
    found: list[Neighbour] = []
    busy: int | None = None
    with suppress(Exception):  # no driver, no permission, not supported here
        running = _nvml().nvmlDeviceGetComputeRunningProcesses(_handle(question.uuid))
        found = others(running, question.program)
        if question.idle and os.getpid() not in {entry.pid for entry in running}:
            busy = int(_nvml().nvmlDeviceGetUtilizationRates(_handle(question.uuid)).gpu)
    return msgspec.msgpack.encode(Around(tuple(found), busy))


def others(running: list[Any], program: int) -> list[Neighbour]:
    """Return the processes in NVML's `running` that belong neither to this run nor to one that takes turns with it.

    This process has a context, so it must be listed; otherwise returns none. Then the numbers are from another process
    namespace, as in some containers, or the list is incomplete. `program`: the process that the run belongs to.
    """
    memory = {entry.pid: entry.usedGpuMemory for entry in running}
    if os.getpid() not in memory:
        return []
    found = [pid for pid in sorted(memory) if not _belongs(pid, program) and not _takes_turns(pid)]
    return [one for pid in found if (one := _described(pid, memory[pid])) is not None]


@cache
def _nvml() -> Any:
    import pynvml

    pynvml.nvmlInit()
    return pynvml


@cache
def _handle(uuid: str) -> Any:
    return _nvml().nvmlDeviceGetHandleByUUID(uuid)


def _belongs(pid: int, program: int) -> bool:
    """Tell whether a process is the program or descends from it."""
    while pid > 1:
        if pid == program:
            return True
        try:
            pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        except (OSError, ValueError, IndexError):
            return False
    return False


def _takes_turns(pid: int) -> bool:
    """Tell whether a process is of a run that has its locks where this one has them."""
    with suppress(OSError):
        for entry in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
            name, _, value = entry.partition(b"=")
            if name.decode(errors="replace") == SERVER_FOLDER:
                return os.path.dirname(os.fsdecode(value)) == os.path.dirname(os.environ.get(SERVER_FOLDER, ""))
    return False


def _described(pid: int, used: int | None) -> Neighbour | None:
    """Return the facts of a process; None if it has ended, or is of another namespace."""
    try:
        name = Path(f"/proc/{pid}/comm").read_text(errors="replace").strip()
        owner = os.stat(f"/proc/{pid}").st_uid
    except OSError:
        return None
    user = ""
    if owner != os.getuid():
        try:
            user = pwd.getpwuid(owner).pw_name
        except KeyError:
            user = str(owner)
    return Neighbour(pid, name, user, used)
