"""A worker process's state, sent once when the worker starts, and its answers about workload, space and devices.

The workload's file and constraints are user code. Calls that list a space are short, so that a deadline for each call
distinguishes a function that hangs from many that take time.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec

from atune.errors import TargetError
from atune.model.candidate import Candidate, Config
from atune.model.device import NO_GPU, DeviceInfo, Target, arch_of_capability, default_limits, parse_target
from atune.stages import tilelang
from atune.workers.messages import Discovery, LoadSpace, Session, SpacePart
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


SLICE_S = 0.5
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
    """List what comes in `SLICE_S`, and `PART` at most; the description comes with the last part."""
    ends, found = time.monotonic() + SLICE_S, list[Config]()
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


# ---- devices, and the target that fits them. NVML is asked: no CUDA context is made


def find_devices(text: str | Target, wanted: tuple[str, ...]) -> Discovery:
    """Resolve a target text and list its devices, of one model if any are `wanted`.

    Asks NVML, and makes no CUDA context. Raises `TargetError` if the target's devices or compilers are missing.
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
            raise TargetError(f"device {bad[0]!r} is not there: target c takes the CPU alone (--devices cpu, devices=)")
        if shutil.which("g++") is None and shutil.which("c++") is None:
            raise TargetError("g++ is missing: target c compiles with it; install g++ (Debian: apt install g++)")
        return Discovery(target, (cpu,), fallback=fallback)
    if "cpu" in wanted:
        raise TargetError("target cuda does not run on device 'cpu': take target c, or all devices")
    if not gpus:
        raise TargetError(f"target cuda: no CUDA GPU is there ({none_found()}): target c takes the CPU")
    ids = [g.id for g in gpus]
    if missing := [d for d in wanted if d != "all" and d not in ids]:
        raise TargetError(f"device {missing[0]!r} is not there; there is {', '.join(ids)}")
    chosen = gpus if "all" in wanted or not wanted else [g for g in gpus if g.id in wanted]
    models = ", ".join(f"{g.id}: {g.name}" for g in chosen)
    if len({g.name if wanted else g.arch for g in chosen}) > 1:
        raise TargetError(f"devices must be of one model, and there is {models}; choose with --devices")
    if not target.arch:
        target = Target("cuda", chosen[0].arch)
    if not os.path.exists(tilelang.nvcc()):
        raise TargetError("nvcc is missing: target cuda compiles with it; install the CUDA toolkit or set CUDA_HOME")
    return Discovery(target, tuple(chosen))


def visible_gpus() -> list[DeviceInfo]:
    """List the GPUs that CUDA_VISIBLE_DEVICES admits, through NVML, without a CUDA context."""
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception:  # no driver, no library
        return []
    try:
        found = [_gpu(pynvml, pynvml.nvmlDeviceGetHandleByIndex(i)) for i in range(pynvml.nvmlDeviceGetCount())]
    finally:
        pynvml.nvmlShutdown()
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        chosen = []
        for entry in (e.strip() for e in visible.split(",")):
            match = [
                g
                for i, g in enumerate(found)
                if entry == str(i) or (entry.startswith("GPU-") and g.uuid.startswith(entry))
            ]
            if not match:
                break  # CUDA too ignores what follows an invalid entry
            chosen += match
        found = chosen
    return [msgspec.structs.replace(g, id=str(i)) for i, g in enumerate(found)]


def gpus(_: bytes) -> bytes:
    """Entry point: return `visible_gpus` as msgpack."""
    return msgspec.msgpack.encode(visible_gpus())


def none_found() -> str:
    """Return why `visible_gpus` lists none."""
    return f"NVML finds none{' among CUDA_VISIBLE_DEVICES' * ('CUDA_VISIBLE_DEVICES' in os.environ)}"


def _gpu(nvml: Any, handle: Any) -> DeviceInfo:
    def text(value: Any) -> str:
        return value.decode() if isinstance(value, bytes) else str(value)

    arch = arch_of_capability(*nvml.nvmlDeviceGetCudaComputeCapability(handle))
    return DeviceInfo(
        id="",
        name=text(nvml.nvmlDeviceGetName(handle)),
        uuid=text(nvml.nvmlDeviceGetUUID(handle)),
        arch=arch,
        memory_bytes=int(nvml.nvmlDeviceGetMemoryInfo(handle).total),
        limits=default_limits(Target("cuda", arch)),
        **_figures(nvml, handle, arch),
    )


def _figures(nvml: Any, handle: Any, arch: str) -> dict[str, Any]:
    """Return a GPU's multiprocessors, clock and memory from NVML, without those that it does not tell."""
    cores = 64 if arch == "sm_80" else 128  # of a multiprocessor (CUDA C++ Programming Guide, arithmetic instructions)
    asked: dict[str, Callable[[], float]] = {
        "sms": lambda: int(nvml.nvmlDeviceGetNumGpuCores(handle)) // cores,
        "clock_hz": lambda: nvml.nvmlDeviceGetMaxClockInfo(handle, nvml.NVML_CLOCK_SM) * 1e6,
        "memory_bytes_s": lambda: (
            nvml.nvmlDeviceGetMaxClockInfo(handle, nvml.NVML_CLOCK_MEM) * 2e6  # twice a clock
            * nvml.nvmlDeviceGetMemoryBusWidth(handle) / 8
        ),
    }  # fmt: skip
    found = {}
    for name, ask in asked.items():
        with contextlib.suppress(Exception):  # an older driver, or a part of a GPU
            found[name] = ask()
    return found


def _cpu_name() -> str:
    try:
        with open("/proc/cpuinfo") as info:
            return next((line.split(":", 1)[1].strip() for line in info if line.startswith("model name")), "CPU")
    except OSError:
        return "CPU"
