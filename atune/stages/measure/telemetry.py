"""Telemetry of a device: its clocks, other processes that use it, and errors of calls."""

from __future__ import annotations

import os
import pwd
import re
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from atune.errors import name_and_message
from atune.model.artifact import FailureKind
from atune.model.folders import SERVER_FOLDER
from atune.model.measurement import Conditions
from atune.workers.processes.messages import Neighbours
from atune.workers.processes.server_main import parent_of

THROTTLE = {
    0x2: "application clocks", 0x4: "power cap", 0x8: "hardware slowdown", 0x10: "sync boost",
    0x20: "temperature", 0x40: "hardware temperature", 0x80: "power brake", 0x100: "display clocks",
}  # fmt: skip
"""Reasons for lower clocks, by bit (NVML API reference, «Clocks Event Reasons»; 0x1 is an idle GPU)."""


class Observer:
    """Asks NVML about one GPU, by its UUID. Facts that NVML does not tell are omitted."""

    def __init__(self, uuid: str) -> None:
        self.uuid, self._nvml = uuid, None
        with suppress(Exception):  # no driver, no permission: measuring works without
            self._handle, self._nvml = _handle(uuid), _nvml()

    def now(self) -> Conditions:
        nvml = self._nvml
        if nvml is None:
            return Conditions(uuid=self.uuid)
        reasons = self._ask("nvmlDeviceGetCurrentClocksEventReasons") or self._ask(
            "nvmlDeviceGetCurrentClocksThrottleReasons"
        )
        return Conditions(
            uuid=self.uuid,
            sm_mhz=self._ask("nvmlDeviceGetClockInfo", nvml.NVML_CLOCK_SM),
            throttle=tuple(name for bit, name in THROTTLE.items() if reasons and reasons & bit),
        )

    def _ask(self, name: str, *arguments: Any) -> int | None:
        try:
            return int(getattr(self._nvml, name)(self._handle, *arguments))
        except Exception:  # not supported here, or not by this version of the bindings
            return None


def neighbours(payload: bytes) -> bytes:
    """Entry point: the answer to `Neighbours`; nobody where NVML cannot tell."""
    question = msgspec.msgpack.decode(payload, type=Neighbours)
    found: dict[int, str] = {}
    busy = 0
    with suppress(Exception):  # no driver, no permission, not supported here
        running = _nvml().nvmlDeviceGetComputeRunningProcesses(_handle(question.uuid))
        found = others(running, question.program)
        if question.idle and os.getpid() not in {entry.pid for entry in running}:
            busy = int(_nvml().nvmlDeviceGetUtilizationRates(_handle(question.uuid)).gpu)
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
        found = {one.pid: one.usedGpuMemory for one in _nvml().nvmlDeviceGetComputeRunningProcesses(_handle(uuid))}
    others = [_described(pid, used) or f"process {pid}" for pid, used in found.items() if pid != os.getpid()]
    return f"NVML names {', '.join(others) or 'nobody'}"


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


_BEYOND_REPAIR = re.compile(
    r"illegal memory access|misaligned address|unspecified launch failure|illegal instruction|"
    r"device-side assert(?!ions)|invalid program counter|hardware stack error|launch timed out|"
    r"not supported on global/shared address space|\bECC\b|\bNVLink error|Invalid access of peer GPU memory|"
    r"CUDA_ERROR_(ILLEGAL_|MISALIGNED_|LAUNCH_FAILED|LAUNCH_TIMEOUT|ASSERT|HARDWARE_|INVALID_PC|"
    r"INVALID_ADDRESS_SPACE|ECC_|NVLINK_|CONTAINED|TENSOR_MEMORY_LEAK)|"
    r"cudaError(Illegal|Misaligned|LaunchFailure|LaunchTimeout|Assert|HardwareStack|InvalidPc|InvalidAddressSpace|"
    r"ECC|Nvlink|Contained|TensorMemoryLeak)",
    re.IGNORECASE,
)
"""The driver's texts and names of errors that leave a context unusable. The CUDA driver API, «CUresult», says of them:
«This leaves the process in an inconsistent state and any further CUDA work will return the same error». Errors of
broken device memory or links are included."""
_NO_MEMORY = re.compile(
    r"can't allocate memory|out of memory|OutOfMemory|CUDA_ERROR_OUT_OF_MEMORY|cudaErrorMemoryAllocation", re.IGNORECASE
)


def kind_of(error: BaseException) -> FailureKind:
    """Tell what became of a call that raised `error`: after ``fault`` the process's context is beyond repair."""
    text = name_and_message(error)
    if _BEYOND_REPAIR.search(text):
        return "fault"
    return "out_of_memory" if _NO_MEMORY.search(text) else "launch"
