"""Cores and memory that this process may use."""

from __future__ import annotations

import math
import os
from pathlib import Path


def usable_cores() -> list[int]:
    """Return the CPUs of this process' affinity mask, cut to the cgroup's quota (``cpu.max``, cgroup v2)."""
    cores = sorted(os.sched_getaffinity(0))
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        if quota != "max":
            cores = cores[: max(1, math.ceil(int(quota) / int(period)))]
    except (OSError, ValueError):
        pass  # no cgroup v2, or no limit in it
    return cores


WORKER_BYTES = 1 << 30
"""Memory set aside for one compile worker, twice the memory seen for bf16 GEMMs in groups of up to twelve. The worker
took 80 MiB of its own, as it shares its imports with the fork server. nvcc's cicc took 450 MiB, NVRTC 300 MiB."""


def usable_memory_bytes(proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")) -> int | None:
    """Return the available bytes: the least of the machine (MemAvailable) and of each cgroup of this process.

    A cgroup's unused page cache (``inactive_file``) counts as free, as in MemAvailable. None if unknown.
    """
    found: list[int] = []
    try:
        lines = (proc / "meminfo").read_text().splitlines()
        found += [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")]
    except (OSError, ValueError):
        pass
    folder = _own_cgroup(proc, cgroups)
    for group in (folder, *folder.parents):
        if not group.is_relative_to(cgroups):
            break
        if (room := _room_bytes(group)) is not None:
            found.append(room)
    return max(0, min(found)) if found else None


def _own_cgroup(proc: Path, cgroups: Path) -> Path:
    """Return the folder of this process' cgroup (v2), or the root if it is unknown."""
    try:
        own = next(line for line in (proc / "self" / "cgroup").read_text().splitlines() if line.startswith("0::"))
        return cgroups / own.removeprefix("0::").lstrip("/")
    except (OSError, StopIteration):
        return cgroups


def _room_bytes(group: Path) -> int | None:
    """Return the bytes that cgroup v2's ``memory.max`` leaves to `group`, or None without a limit."""
    try:
        limit = int((group / "memory.max").read_text())
        used = int((group / "memory.current").read_text())
        stat = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
        return limit - used + int(stat.get("inactive_file", 0))
    except (OSError, ValueError):  # no cgroup v2, or "max"
        return None


def oom_kills(proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")) -> int | None:
    """Return the number of processes that the kernel killed because memory ran out, or None if it is unknown.

    The number is that of this process' cgroup (``memory.events``), else of the machine. The kernel counts before it
    kills.
    """
    for file in (_own_cgroup(proc, cgroups) / "memory.events", proc / "vmstat"):
        try:
            return next(int(line.split()[1]) for line in file.read_text().splitlines() if line.startswith("oom_kill "))
        except (OSError, StopIteration, ValueError):
            continue
    return None


def workers_that_fit(wanted: int, available_bytes: int | None) -> int:
    """Return the number of compile workers that fit into memory: at most `wanted`, at least one."""
    if available_bytes is None:
        return wanted
    return max(1, min(wanted, available_bytes // WORKER_BYTES))
