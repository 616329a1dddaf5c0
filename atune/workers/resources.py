"""The cores and the memory that this process may use, and how to detect shortages and killed compilers.

Exceptions and compiler output show both. A candidate is not at fault if its compiler lacks a resource or is killed.
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
    """Return the CPUs of this process' affinity mask, at most as many as the quota in ``cpu.max`` (cgroup v2)."""
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
"""Memory set aside for a compile worker: twice what a worker used for bf16 GEMMs in groups of up to twelve. It used
80 MiB itself (it shares its imports with the fork server), and nvcc's cicc used 450 MiB, or NVRTC 300 MiB."""


def usable_memory_bytes(proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")) -> int | None:
    """Return the available bytes, the minimum over the machine (MemAvailable) and each cgroup of this process.

    A cgroup's unused page cache (``inactive_file``) counts as free, as in MemAvailable. None if unknown.
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
    """Return the folder of this process' cgroup (v2), or the root if it is unknown."""
    try:
        own = next(line for line in (proc / "self" / "cgroup").read_text().splitlines() if line.startswith("0::"))
        return cgroups / own.removeprefix("0::").lstrip("/")
    except (OSError, StopIteration):
        return cgroups


def _room_bytes(group: Path) -> int | None:
    """Return the bytes that `group` may still use below its ``memory.max`` (cgroup v2), or None without a limit."""
    try:
        limit = int((group / "memory.max").read_text())
        used = int((group / "memory.current").read_text())
        stat = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
        return limit - used + int(stat.get("inactive_file", 0))
    except (OSError, ValueError):  # no cgroup v2, or "max"
        return None


def workers_that_fit(wanted: int, available_bytes: int | None) -> int:
    """Return the number of compile workers that fit into memory: at most `wanted`, at least one."""
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
"""Messages in compiler output by which the C library and runtimes report these errors."""


KILLED = re.compile(
    r"Killed signal terminated program|(?:(?:died due to|terminated with|killed by) signal|wait status) (?:9|15)\b"
)
"""Messages of gcc, nvcc and atune for a compiler that got SIGKILL or SIGTERM."""


LEAST_BYTES = 32 << 20
"""Free disk space below which a compiler's failure is blamed on the disk, because some compilers do not name the cause.
nvcc's temporary files for a library take several MiB, and nvcc removes them when it fails."""


class ShortOf(Exception):
    """The machine ran out of a resource. Raised in the worker; the message begins with the resource's name."""


class CompilerKilled(Exception):
    """A signal from outside killed a compiler. Raised in the worker that called it."""


def check_machine(error: BaseException, output: str = "", *, but: Resource | None = None) -> None:
    """Raise `ShortOf` or `CompilerKilled` if `error`, or the compiler output `output`, shows that the machine failed.

    `but`: a resource to ignore, because a candidate that ran in this process may have used it up.
    """
    if isinstance(error, ShortOf | CompilerKilled):
        raise error
    short_of = shortage_of(error) or shortage_in(output)
    if short_of is not None and short_of != but:
        raise ShortOf(f"{short_of}: {message_of(error)[:500]}") from error
    if killed := KILLED.search(output):
        raise CompilerKilled(f"a compiler was killed: {killed[0]}") from error


def check_compiled(error: BaseException, output: str) -> None:
    """Check like `check_machine`, and also raise `ShortOf` if compilers have hardly any disk space."""
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
    """Return the resource that is missing according to the English output of a compiler or a library, or None."""
    for short_of, pattern in BY_TEXT.items():
        if pattern.search(output):
            return _confirmed(short_of)
    return None


def _confirmed(short_of: Resource) -> Resource | None:
    """Report memory as short only if little is free, because a request that is too large fails on any machine."""
    if short_of != "memory":
        return short_of
    room = usable_memory_bytes()
    return short_of if room is not None and room < WORKER_BYTES else None


def what_to_do(short_of: Resource, folder: str) -> str:
    """Return a message that names the shortage and its remedy. `folder` holds the run's files."""
    fewer = "use fewer compile workers (--workers, CompileSettings(workers=…))"
    return {
        "space": f"no space is left on the disk of {folder}: make room there, or set TMPDIR to another place",
        "memory": f"memory ran out: end other programs, or {fewer}",
        "files": f"no more files can be opened: end other programs, raise the limit (ulimit -n), or {fewer}",
        "processes": "no more processes can be started: end other processes, or raise the limit (ulimit -u)",
    }[short_of]
