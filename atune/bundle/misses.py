"""Calls whose problem was never tuned: counted, and told to a file or a function, so that they can be tuned."""

from __future__ import annotations

import fcntl
import json
import os
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MOST_MISSES = 1024
"""Most different misses that a process tells apart, and that a file keeps when it is shortened."""
MOST_BYTES = 1 << 20
"""Size from which a file is shortened: each problem once, with all its calls."""
PATIENCE_S = 0.05
"""How long a call waits for another process that shortens the file."""

Told = Callable[[dict[str, Any]], object]
"""A function that hears of misses."""


@dataclass
class Miss:
    """Calls of one kind. `used`: the problem whose kernel runs instead, chosen `by` the rule or `on_miss`."""

    shapes: list[list[int]]
    problem: dict[str, Any]
    used: dict[str, Any] | None
    by: str
    count: int = 0
    told: int = 0
    """How many of these calls the listener has heard of."""

    def plain(self) -> dict[str, Any]:
        """Return it as `Bundle.misses` does."""
        return {name: value for name, value in vars(self).items() if name != "told"}


class Misses:
    """The misses of a bundle in this process. Several threads may count."""

    def __init__(self, tell: Told | None) -> None:
        self._tell, self._lock, self._found = tell, threading.Lock(), dict[Any, Miss]()
        self._rest = Miss([], {}, None, "")
        """Those beyond `MOST_MISSES`."""

    def entry(self, miss: Miss) -> Miss:
        """Return the entry that counts calls like `miss`."""
        key = repr((miss.shapes, miss.problem, miss.used))
        with self._lock:
            if key not in self._found and len(self._found) >= MOST_MISSES:
                return self._rest
            return self._found.setdefault(key, miss)

    def count(self, miss: Miss) -> None:
        """Count a call. The listener hears of the first, the second, the fourth and so on, with those since."""
        with self._lock:
            miss.count += 1
            if self._tell is None or miss is self._rest or miss.count & (miss.count - 1):
                return
            weight, miss.told = miss.count - miss.told, miss.count
        try:
            self._tell(miss.plain() | {"weight": weight})
        except Exception as error:  # the call is more important
            with self._lock:
                miss.told -= weight  # told with the next
            warnings.warn(f"a miss could not be told: {type(error).__name__}: {error}", RuntimeWarning, stacklevel=4)

    def __call__(self) -> list[dict[str, Any]]:
        with self._lock:
            return [miss.plain() for miss in (*self._found.values(), self._rest) if miss.count]


class MissFile:
    """A file of problems that were missed, one a line with its ``weight``: how many calls. `Problems` reads it.

    Many processes may write it. A problem stands in several lines, whose weights add up. `names`: the arguments of a
    problem; a miss of which they are not all known cannot be tuned, and is not written. Nor are empty tensors.
    """

    def __init__(self, path: str | os.PathLike[str], names: Sequence[str]) -> None:
        self._path, self._names = Path(path), frozenset(names)
        with self._open(fcntl.LOCK_SH):
            pass  # a file that cannot be written is an error at once

    def __call__(self, miss: Mapping[str, Any]) -> None:
        """Append a line. Raises `OSError` where it cannot be written."""
        if any(0 in shape for shape in miss["shapes"]):
            return  # nothing is computed, so there is nothing to tune
        problem = {name: value for name, value in miss["problem"].items() if name in self._names}
        if not problem or problem.keys() != self._names:
            names = ", ".join(sorted(self._names))
            raise ValueError(f"the shapes {miss['shapes']} do not tell the problem: name {names} in the call")
        line = _line({**problem, "weight": miss["weight"]})
        with self._open(fcntl.LOCK_SH) as fd:
            full = os.fstat(fd).st_size + len(line) > MOST_BYTES
            if not full:
                os.write(fd, line)
        if full:
            with self._open(fcntl.LOCK_EX) as fd:
                self._shorten(fd, line)

    def _shorten(self, fd: int, line: bytes) -> None:
        """Replace the file by one with each problem once, the most frequent ones, and `line`."""
        weights: dict[str, float] = {}
        for each in (*Path(f"/proc/self/fd/{fd}").read_bytes().splitlines(), line):
            with suppress(ValueError, KeyError, AttributeError):  # a line that was cut short
                problem = json.loads(each)
                weight = problem.pop("weight")
                key = json.dumps(problem, sort_keys=True)
                weights[key] = weights.get(key, 0) + weight
        kept = sorted(weights.items(), key=lambda one: (-one[1], one[0]))[:MOST_MISSES]
        part = self._path.with_name(f".{self._path.name}.{os.getpid()}.part")
        part.write_bytes(b"".join(_line({**json.loads(key), "weight": weight}) for key, weight in kept))
        part.replace(self._path)

    @contextmanager
    def _open(self, lock: int) -> Iterator[int]:
        """Open the file, which nobody replaces meanwhile. Raises `OSError`."""
        until = time.monotonic() + PATIENCE_S
        while True:
            fd = os.open(self._path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
            try:
                locked = False
                with suppress(BlockingIOError, FileNotFoundError):
                    fcntl.flock(fd, lock | fcntl.LOCK_NB)
                    locked = os.fstat(fd).st_ino == os.stat(self._path).st_ino
                if locked:
                    yield fd
                    return
            finally:
                os.close(fd)
            if time.monotonic() > until:
                raise TimeoutError(f"{self._path} is locked by another process")
            time.sleep(0.001)


def _line(row: Mapping[str, Any]) -> bytes:
    return json.dumps(row, sort_keys=True).encode() + b"\n"
