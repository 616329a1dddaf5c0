"""The cores and the memory that this process may use, and the detection of shortages and of killed compilers.

Exceptions and compiler output show shortages and killed compilers. A candidate is not at fault for a shortage or a
killed compiler.
"""

from __future__ import annotations

import errno
import math
import os
import re
import tempfile
from pathlib import Path
from typing import Literal

from atune.errors import message_of


def usable_cores() -> list[int]:
    """Return the CPUs of this process' affinity mask, but no more CPUs than ``cpu.max`` (cgroup v2) allows."""
    cores = sorted(os.sched_getaffinity(0))
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        if quota != "max":
            cores = cores[: max(1, math.ceil(int(quota) / int(period)))]
    except (OSError, ValueError):
        pass  # no cgroup v2, or no limit in it
    return cores


COMPILE_NICE = 5
"""Niceness of the compile workers, which gives the user's own programs and the device processes precedence."""
WORKER_BYTES = 1 << 30
"""Bytes of memory to set aside for a compile worker: twice the memory that a worker used for bf16 GEMMs in groups of up
to twelve. The worker used 80 MiB that it does not share with the fork server; cicc used 450 MiB, NVRTC 300 MiB."""


def usable_memory_bytes(proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")) -> int | None:
    """Return the free bytes of memory: the minimum over the machine (MemAvailable) and each cgroup of this process.

    As in MemAvailable, a cgroup's unused page cache (``inactive_file``) counts as free. None if the number is unknown.
    """
    rooms: list[int] = []
    try:
        lines = (proc / "meminfo").read_text().splitlines()
        rooms += [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")]
    except (OSError, ValueError):
        pass
    folder = _own_cgroup(proc, cgroups)
    for group in (folder, *folder.parents):
        if not group.is_relative_to(cgroups):
            break
        if (room := _room_bytes(group)) is not None:
            rooms.append(room)
    return max(0, min(rooms)) if rooms else None


def _own_cgroup(proc: Path, cgroups: Path) -> Path:
    """Return the folder of this process' cgroup (v2); if that folder is unknown, return the root of all cgroups."""
    try:
        own = next(line for line in (proc / "self" / "cgroup").read_text().splitlines() if line.startswith("0::"))
        return cgroups / own.removeprefix("0::").lstrip("/")
    except (OSError, StopIteration):
        return cgroups


def _room_bytes(group: Path) -> int | None:
    """Return how many more bytes ``memory.max`` lets `group` use (cgroup v2); None if `group` has no limit."""
    try:
        limit = int((group / "memory.max").read_text())
        used = int((group / "memory.current").read_text())
        stat = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
        return limit - used + int(stat.get("inactive_file", 0))
    except (OSError, ValueError):  # no cgroup v2, or "max"
        return None


def workers_that_fit(wanted: int, available_bytes: int | None) -> int:
    """Return how many compile workers fit into memory, but at most `wanted`, and at least one."""
    if available_bytes is None:
        return wanted
    return max(1, min(wanted, available_bytes // WORKER_BYTES))


Resource = Literal["space", "memory", "files", "processes", "device memory"]

BY_NUMBER: dict[int, Resource] = {
    errno.ENOSPC: "space", errno.EDQUOT: "space",
    errno.ENOMEM: "memory",
    errno.EMFILE: "files", errno.ENFILE: "files",
    errno.EAGAIN: "processes",
}  # fmt: skip
BY_TEXT: dict[Resource, re.Pattern[str]] = {
    "space": re.compile("No space left on device|Disk quota exceeded"),
    "memory": re.compile("Cannot allocate memory|virtual memory exhausted|out of memory allocating|std::bad_alloc"),
    "files": re.compile("Too many open files"),
    "processes": re.compile(
        "(?:fork|spawn|clone|thread)[^\\n]*Resource temporarily unavailable|can't start new thread|cannot fork"
    ),
}
"""The messages with which the C library and other runtimes report each shortage in a compiler's output."""


KILLED = re.compile(
    r"Killed signal terminated program|(?:(?:died due to|terminated with|killed by) signal|wait status) (?:9|15)\b"
)
"""The messages with which gcc, nvcc and atune report that a compiler got SIGKILL or SIGTERM."""


LEAST_BYTES = 32 << 20
"""Bytes of free disk space. If less space is free when a compiler fails, atune blames the disk, because some compilers
do not name the cause. For one library, nvcc writes several MiB of temporary files, and removes these files when it
fails."""


class ShortOf(Exception):
    """The machine ran out of a resource. Raised in the worker, with a message that begins with the resource's name."""


class CompilerKilled(Exception):
    """A signal from outside killed a compiler. Raised in the worker that called the compiler."""


def check_machine(error: BaseException, output: str = "", *, but: Resource | None = None) -> None:
    """If `error` or a compiler's `output` shows that the machine is at fault, raise `ShortOf` or `CompilerKilled`.
    `but`: a resource to ignore, because a candidate that ran in this process may have used it up."""
    if isinstance(error, ShortOf | CompilerKilled):
        raise error
    short_of = shortage_of(error) or shortage_in(output)
    if short_of is not None and short_of != but:
        raise ShortOf(f"{short_of}: {message_of(error)[:500]}") from error
    if killed := KILLED.search(output):
        raise CompilerKilled(f"a compiler was killed: {killed[0]}") from error


def check_compiled(error: BaseException, output: str) -> None:
    """Do the checks of `check_machine`, and also raise `ShortOf` if hardly any disk space is left for compilers."""
    check_machine(error, output)
    folder = os.environ.get("TMPDIR") or tempfile.gettempdir()
    if space_is_short(folder):
        raise ShortOf(f"space: {folder} is full; {output[:500]}") from error


def space_is_short(folder: str) -> bool:
    """Tell whether the disk of `folder` is almost full."""
    try:
        disk = os.statvfs(folder)
    except OSError:
        return False
    return disk.f_bavail * disk.f_frsize < LEAST_BYTES or (disk.f_files > 0 and disk.f_favail == 0)


def shortage_of(error: BaseException) -> Resource | None:
    """Return the resource whose shortage caused `error`, or None."""
    seen: set[int] = set()
    cause: BaseException | None = error
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        short_of: Resource | None = None
        if isinstance(cause, OSError):
            short_of = BY_NUMBER.get(cause.errno or 0)
        elif isinstance(cause, MemoryError):
            short_of = "memory"
        elif isinstance(cause, RuntimeError) and "can't start new thread" in message_of(cause):
            short_of = "processes"
        if short_of is not None:
            return _confirmed(short_of)
        cause = cause.__cause__ or cause.__context__
    return None


def shortage_in(output: str) -> Resource | None:
    """Return the resource that is missing according to the English `output` of a compiler or a library, or None."""
    for short_of, pattern in BY_TEXT.items():
        if pattern.search(output):
            return _confirmed(short_of)
    return None


def _confirmed(short_of: Resource) -> Resource | None:
    """Return `short_of`. If `short_of` is memory although much memory is free, the request was too large, so return
    None."""
    if short_of != "memory":
        return short_of
    room = usable_memory_bytes()
    return short_of if room is not None and room < WORKER_BYTES else None


def what_to_do(short_of: Resource, folder: str) -> str:
    """Return a message that names the shortage and a remedy. `folder`: where the run's files are."""
    fewer = "use fewer compile workers (--workers, CompileSettings(workers=…))"
    return {
        "space": f"no space is left on the disk of {folder}: make room there, or set TMPDIR to another place",
        "memory": f"memory ran out: end other programs, or {fewer}",
        "files": f"no more files can be opened: end other programs, raise the limit (ulimit -n), or {fewer}",
        "processes": "no more processes can be started: end other processes, or raise the limit (ulimit -u)",
    }[short_of]
