"""Calls whose problem was never tuned: counted, and told to a file or a function, so that they can be tuned."""

from __future__ import annotations

import json
import os
import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MOST_MISSES = 1024
"""Most different misses that a process tells apart."""
MOST_BYTES = 64 << 20
"""Most bytes of a file. Of each problem a process writes few lines."""

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
        self._append(b"")  # a file that cannot be written is an error at once

    def __call__(self, miss: Mapping[str, Any]) -> None:
        """Append a line. Raises `OSError` where it cannot be written."""
        if any(0 in shape for shape in miss["shapes"]):
            return  # nothing is computed, so there is nothing to tune
        problem = {name: value for name, value in miss["problem"].items() if name in self._names}
        if not problem or problem.keys() != self._names:
            names = ", ".join(sorted(self._names))
            raise ValueError(f"the shapes {miss['shapes']} do not tell the problem: name {names} in the call")
        self._append(json.dumps({**problem, "weight": miss["weight"]}, sort_keys=True).encode() + b"\n")

    def _append(self, line: bytes) -> None:
        """Append in one write, which others do not split. The file is opened anew, because it may be moved away."""
        with open(self._path, "ab", buffering=0) as file:
            if file.tell() + len(line) > MOST_BYTES:
                raise OSError(f"{self._path} is full: tune its problems, and remove it")
            file.write(line)
