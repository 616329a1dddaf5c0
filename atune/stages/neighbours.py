"""Other processes that use a device, as far as NVML names them."""

from __future__ import annotations

import os
import pwd
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from atune.model.folders import SERVER_FOLDER
from atune.stages.clocks import handle, nvml
from atune.workers.messages import Neighbours
from atune.workers.server_main import parent_of


def neighbours(payload: bytes) -> bytes:
    """Entry point: the answer to `Neighbours`; nobody where NVML cannot tell."""
    question = msgspec.msgpack.decode(payload, type=Neighbours)
    found: dict[int, str] = {}
    busy = 0
    with suppress(Exception):  # no driver, no permission, not supported here
        running = nvml().nvmlDeviceGetComputeRunningProcesses(handle(question.uuid))
        found = others(running, question.program)
        if question.idle and os.getpid() not in {entry.pid for entry in running}:
            busy = int(nvml().nvmlDeviceGetUtilizationRates(handle(question.uuid)).gpu)
    return msgspec.msgpack.encode((found, busy))


def others(running: list[Any], program: int) -> dict[int, str]:
    """Describe the processes in NVML's `running`, by pid, that are neither of this run nor of one that takes turns.

    This process has a context, so it must be listed; otherwise returns none. Then the numbers are from another process
    namespace, as in some containers, or the list is incomplete. `program`: the process that the run belongs to.
    """
    memory = {entry.pid: entry.usedGpuMemory for entry in running}
    if os.getpid() not in memory:
        return {}
    found = [pid for pid in sorted(memory) if not _belongs(pid, program) and not _takes_turns(pid)]
    return {pid: text for pid in found if (text := _described(pid, memory[pid]))}


def holders(uuid: str) -> str:
    """Say who else uses a GPU, as far as NVML knows: also who was killed, and has yet to give its memory back."""
    found: dict[int, int | None] = {}
    with suppress(Exception):  # no driver, no permission, not supported here
        found = {one.pid: one.usedGpuMemory for one in nvml().nvmlDeviceGetComputeRunningProcesses(handle(uuid))}
    others = [_described(pid, used) or f"process {pid}" for pid, used in found.items() if pid != os.getpid()]
    return f"NVML names {', '.join(others) or 'nobody'}"


def _belongs(pid: int, program: int) -> bool:
    """Tell whether a process is the program or descends from it."""
    while pid > 1 and pid != program:
        pid = parent_of(pid)
    return pid == program


def _takes_turns(pid: int) -> bool:
    """Tell whether a process is of a run that has its locks where this one has them."""
    with suppress(OSError):
        for entry in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
            name, _, value = entry.partition(b"=")
            if name.decode(errors="replace") == SERVER_FOLDER:
                return os.path.dirname(os.fsdecode(value)) == os.path.dirname(os.environ.get(SERVER_FOLDER, ""))
    return False


def _described(pid: int, used: int | None) -> str:
    """Describe a process; empty if it has ended, or is of another namespace."""
    try:
        name = Path(f"/proc/{pid}/comm").read_text(errors="replace").strip()
        owner = os.stat(f"/proc/{pid}").st_uid
    except OSError:
        return ""
    user = ""
    if owner != os.getuid():
        try:
            user = f" of user {pwd.getpwuid(owner).pw_name}"
        except KeyError:
            user = f" of user {owner}"
    return f"process {pid}{user} ({name}{'' if used is None else f', {used >> 20} MiB'})"
