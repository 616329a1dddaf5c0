"""List the devices of this machine, resolve a target, describe a GPU's other users, and classify device errors."""

from __future__ import annotations

import os
import pwd
import re
import shutil
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from atune.errors import TargetError, name_and_message
from atune.model.artifact import FailureKind
from atune.model.device import NO_GPU, DeviceInfo, Target, arch_of_capability, default_limits, parse_target
from atune.model.folders import SERVER_FOLDER
from atune.stages import tilelang
from atune.workers.messages import Discovery, Neighbours
from atune.workers.server_main import parent_of

# ---- list devices and resolve targets, without a CUDA context


def find_devices(text: str | Target, wanted: tuple[str, ...]) -> Discovery:
    """Resolve a target text, and list the target's devices. If `wanted` names devices, they must be of the same model.

    Asks NVML without creating a CUDA context. Raises `TargetError` if the target's devices or compilers are missing.
    """
    target = parse_target(text)
    if not wanted and target is not None and (target.kind == "c" or target.arch):
        nvcc = target.kind == "c" or os.path.exists(tilelang.nvcc())
        return Discovery(target, (), nvcc=nvcc)  # compile only
    cpu = DeviceInfo(id="cpu", name=_cpu_name())
    if wanted == ("cpu",) and target is None:
        target = Target("c")
    gpus = visible_gpus() if target is None or target.kind == "cuda" else []
    fallback = NO_GPU if target is None and not gpus else ""
    if target is None:
        target = Target("cuda") if gpus else Target("c")
    if target.kind == "c":
        if bad := [d for d in wanted if d not in ("all", "cpu")]:
            raise TargetError(f"device {bad[0]!r} does not exist: target c has only the CPU (--devices cpu, devices=)")
        if shutil.which("g++") is None and shutil.which("c++") is None:
            raise TargetError("g++ is missing, which target c needs: install g++ (Debian: apt install g++)")
        return Discovery(target, (cpu,), fallback=fallback)
    if "cpu" in wanted:
        raise TargetError("target cuda does not run on device 'cpu': use target c, or all devices")
    if not gpus:
        instead = "use target c for the CPU, or compile without measuring: atune tune --compile-only, or compile_all"
        raise TargetError(f"target cuda: there is no CUDA GPU ({no_gpu_reason()}): {instead}")
    ids = [g.id for g in gpus]
    if missing := [d for d in wanted if d != "all" and d not in ids]:
        raise TargetError(f"device {missing[0]!r} does not exist: choose from {', '.join(ids)}")
    chosen = gpus if "all" in wanted or not wanted else [g for g in gpus if g.id in wanted]
    models = ", ".join(f"{g.id}: {g.name}" for g in chosen)
    if len({g.name if wanted else g.arch for g in chosen}) > 1:
        raise TargetError(f"devices must be of the same model, but there are {models}: choose with --devices")
    if not target.arch:
        target = Target("cuda", chosen[0].arch)
    if not os.path.exists(tilelang.nvcc()):
        raise TargetError("nvcc is missing, which target cuda needs: install the CUDA toolkit or set CUDA_HOME")
    return Discovery(target, tuple(chosen))


def visible_gpus() -> list[DeviceInfo]:
    """List the GPUs that CUDA_VISIBLE_DEVICES admits. Asks NVML without creating a CUDA context."""
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception:  # no driver, no library
        return []
    try:
        listed = [_gpu(pynvml, pynvml.nvmlDeviceGetHandleByIndex(i)) for i in range(pynvml.nvmlDeviceGetCount())]
    finally:
        pynvml.nvmlShutdown()
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        chosen = []
        for entry in (e.strip() for e in visible.split(",")):
            match = [
                g
                for i, g in enumerate(listed)
                if entry == str(i) or (entry.startswith("GPU-") and g.uuid.startswith(entry))
            ]
            if not match:
                break  # CUDA, too, ignores the entries after an invalid entry
            chosen += match
        listed = chosen
    return [msgspec.structs.replace(g, id=str(i)) for i, g in enumerate(listed)]


def gpus(_: bytes) -> bytes:
    """Entry point: return `visible_gpus` as msgpack."""
    return msgspec.msgpack.encode(visible_gpus())


def no_gpu_reason() -> str:
    """Return the reason why `visible_gpus` is empty."""
    return f"NVML finds none{' among CUDA_VISIBLE_DEVICES' * ('CUDA_VISIBLE_DEVICES' in os.environ)}"


def _gpu(pynvml: Any, device: Any) -> DeviceInfo:
    def text(value: Any) -> str:
        return value.decode() if isinstance(value, bytes) else str(value)

    arch = arch_of_capability(*pynvml.nvmlDeviceGetCudaComputeCapability(device))
    return DeviceInfo(
        id="",
        name=text(pynvml.nvmlDeviceGetName(device)),
        uuid=text(pynvml.nvmlDeviceGetUUID(device)),
        arch=arch,
        memory_bytes=int(pynvml.nvmlDeviceGetMemoryInfo(device).total),
        limits=default_limits(Target("cuda", arch)),
        **_figures(pynvml, device, arch),
    )


def _figures(pynvml: Any, device: Any, arch: str) -> dict[str, Any]:
    """Return a GPU's number of multiprocessors, clock rate and memory bandwidth, if NVML reports these figures."""
    cores = 64 if arch == "sm_80" else 128  # of a multiprocessor (CUDA C++ Programming Guide, arithmetic instructions)
    asked: dict[str, Callable[[], float]] = {
        "sms": lambda: int(pynvml.nvmlDeviceGetNumGpuCores(device)) // cores,
        "clock_hz": lambda: pynvml.nvmlDeviceGetMaxClockInfo(device, pynvml.NVML_CLOCK_SM) * 1e6,
        "memory_bytes_s": lambda: (
            pynvml.nvmlDeviceGetMaxClockInfo(device, pynvml.NVML_CLOCK_MEM) * 2e6  # two transfers a clock
            * pynvml.nvmlDeviceGetMemoryBusWidth(device) / 8
        ),
    }  # fmt: skip
    figures = {}
    for name, ask in asked.items():
        with suppress(Exception):  # an older driver, or a part of a GPU
            figures[name] = ask()
    return figures


def _cpu_name() -> str:
    try:
        with open("/proc/cpuinfo") as info:
            return next((line.split(":", 1)[1].strip() for line in info if line.startswith("model name")), "CPU")
    except OSError:
        return "CPU"


# ---- in a device's process


@cache
def nvml() -> Any:
    import pynvml

    pynvml.nvmlInit()
    return pynvml


@cache
def handle(uuid: str) -> Any:
    return nvml().nvmlDeviceGetHandleByUUID(uuid)


# ---- other processes that use a device, as far as NVML names them


def neighbours(payload: bytes) -> bytes:
    """Entry point: `Neighbours` → other users by pid, and the GPU's utilisation in percent, if NVML reports it."""
    question = msgspec.msgpack.decode(payload, type=Neighbours)
    users: dict[int, str] = {}
    busy = 0
    with suppress(Exception):  # no driver, no permission, not supported here
        running = nvml().nvmlDeviceGetComputeRunningProcesses(handle(question.uuid))
        users = foreign_users(running, question.program)
        if question.idle and os.getpid() not in {entry.pid for entry in running}:
            busy = int(nvml().nvmlDeviceGetUtilizationRates(handle(question.uuid)).gpu)
    return msgspec.msgpack.encode((users, busy))


def foreign_users(running: list[Any], program: int) -> dict[int, str]:
    """Describe NVML's `running` processes by pid, except processes of this run and of runs that take turns with it.

    The result is empty if the list lacks this process, which has a CUDA context. The list is then incomplete, or its
    pids are from another namespace, as in some containers. `program`: pid of the program that started this run.
    """
    memory = {entry.pid: entry.usedGpuMemory for entry in running}
    if os.getpid() not in memory:
        return {}
    foreign = [pid for pid in sorted(memory) if not _belongs(pid, program) and not _takes_turns(pid)]
    return {pid: text for pid in foreign if (text := _described(pid, memory[pid]))}


def holders(uuid: str) -> str:
    """Describe other processes that NVML lists for a GPU, including killed processes that still hold memory."""
    memory: dict[int, int | None] = {}
    with suppress(Exception):  # no driver, no permission, not supported here
        memory = {p.pid: p.usedGpuMemory for p in nvml().nvmlDeviceGetComputeRunningProcesses(handle(uuid))}
    others = [_described(pid, used) or f"process {pid}" for pid, used in memory.items() if pid != os.getpid()]
    return f"NVML names {', '.join(others) or 'nobody'}"


def _belongs(pid: int, program: int) -> bool:
    """Tell whether a process is `program` or a descendant of `program`."""
    while pid > 1 and pid != program:
        pid = parent_of(pid)
    return pid == program


def _takes_turns(pid: int) -> bool:
    """Tell whether a process belongs to a run that takes turns with this run, because both use the same lock folder."""
    with suppress(OSError):
        for entry in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
            name, _, value = entry.partition(b"=")
            if name.decode(errors="replace") == SERVER_FOLDER:
                return os.path.dirname(os.fsdecode(value)) == os.path.dirname(os.environ.get(SERVER_FOLDER, ""))
    return False


def _described(pid: int, used: int | None) -> str:
    """Describe a process; empty if the process has ended or belongs to another namespace."""
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


# ---- kinds of errors


_BEYOND_REPAIR = (
    r"illegal memory access|misaligned address|unspecified launch failure|illegal instruction|"
    r"device-side assert(?!ions)|invalid program counter|hardware stack error|launch timed out|"
    r"not supported on global/shared address space|\bECC\b|\bNVLink error|Invalid access of peer GPU memory|"
    r"CUDA_ERROR_(ILLEGAL_|MISALIGNED_|LAUNCH_FAILED|LAUNCH_TIMEOUT|ASSERT|HARDWARE_|INVALID_PC|"
    r"INVALID_ADDRESS_SPACE|ECC_|NVLINK_|CONTAINED|TENSOR_MEMORY_LEAK)|"
    r"cudaError(Illegal|Misaligned|LaunchFailure|LaunchTimeout|Assert|HardwareStack|InvalidPc|InvalidAddressSpace|"
    r"ECC|Nvlink|Contained|TensorMemoryLeak)"
)
"""Pattern for messages and names of driver errors that leave a context unusable, including errors of device memory and
links. The CUDA driver API, «CUresult», says: «This leaves the process in an inconsistent state and any further CUDA
work will return the same error». The pattern is compiled only when an error occurs, because compiling it takes
milliseconds."""
_NO_MEMORY = r"can't allocate memory|out of memory|OutOfMemory|CUDA_ERROR_OUT_OF_MEMORY|cudaErrorMemoryAllocation"


def kind_of(error: BaseException) -> FailureKind:
    """Return the failure kind of a call that raised `error`. After a ``fault``, the process's context is unusable."""
    text = name_and_message(error)
    if re.search(_BEYOND_REPAIR, text, re.IGNORECASE):
        return "fault"
    return "out_of_memory" if re.search(_NO_MEMORY, text, re.IGNORECASE) else "launch"
