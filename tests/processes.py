"""Finding every process that a program started, compilers of compilers included, by a mark in its environment."""

from __future__ import annotations

import contextlib
import os
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import anyio

MARK = "ATUNE_TEST_MARK"


def new_mark() -> str:
    return uuid.uuid4().hex


def marked(mark: str) -> dict[int, str]:
    """Return {pid: command line} of the live processes that carry `mark`; zombies have no environment left."""
    found = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        with contextlib.suppress(OSError):
            if f"{MARK}={mark}\0".encode() in (entry / "environ").read_bytes():
                command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
                found[int(entry.name)] = command or (entry / "comm").read_text().strip()
    return found


def wait_until(condition: Callable[[], bool], within_s: float, what: str) -> float:
    """Wait for `condition` and return the seconds that took; fail with `what` when it does not come."""
    started = asked = time.monotonic()
    while not condition():
        now = time.monotonic()
        if now - started > within_s:
            raise AssertionError(f"{what}: not within {within_s} s")
        time.sleep(min(max(0.01, 4 * (now - asked)), 0.1))  # looking through /proc takes long itself
        asked = time.monotonic()
    return time.monotonic() - started


async def until(condition: Callable[[], object], within_s: float = 2.0) -> bool:
    """Wait for `condition` beside the event loop; tell whether it came."""
    with anyio.move_on_after(within_s):
        while not condition():
            await anyio.sleep(0.01)
    return bool(condition())


def gone(pid: int) -> bool:
    """Tell whether a process has ended; a zombie has."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    return True


def groups(pids: Iterator[int] | dict[int, str]) -> set[int]:
    """Return the process groups of `pids`."""
    found = set()
    for pid in pids:
        with contextlib.suppress(OSError):
            found.add(int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[2]))
    return found


def in_groups(groups: Iterable[int]) -> dict[int, str]:
    """Return the live processes of these process groups, with their names; zombies do not count."""
    found, wanted = {}, set(groups)
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            name, _, rest = (entry / "stat").read_text().partition("(")[2].rpartition(") ")
            state, _, group, *_ = rest.split()
            if int(group) in wanted and state not in "ZX":
                found[int(entry.name)] = name
    return found


def environment() -> dict[str, str]:
    root = Path(__file__).parent
    folders = filter(None, (str(root), str(root.parent), os.environ.get("PYTHONPATH")))
    return {**os.environ, "PYTHONPATH": os.pathsep.join(folders)}
