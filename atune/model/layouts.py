"""Results of layout inference for a kernel: which thread holds which elements, and does which iterations."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any

import msgspec

OWN = ("compiler", 0)
"""Values of a layout axis that leave the choice to the compiler."""
MOST_RANGES = 8
"""Of threads, in a text."""


class LayoutAxis(tuple[Any, ...]):
    """The values of an axis of layouts, which a run may choose from before it measures: see `layout_choice`."""

    __slots__ = ()


class FragmentFacts(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """A buffer in registers. `slots`: elements that fit each thread's part."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    slots: int
    replication: int = 1
    """How many threads hold each element."""

    @property
    def registers(self) -> int:
        """32-bit registers that a thread's elements take."""
        bits = re.search(r"\d+", self.dtype)
        return math.ceil(self.slots * (int(bits[0]) if bits else 8) / 32)


class SharedFacts(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """A buffer in shared memory. `swizzled`: its elements are not in row order."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    swizzled: bool = False


class LoopFacts(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """A parallel loop. `slots`: iterations of each thread."""

    extents: tuple[int, ...]
    slots: int
    replication: int = 1
    """How many threads do each iteration."""
    redundant: int = 0
    """Iterations of a thread beyond an even share: slots minus ceil(iterations / threads)."""
    width: int = 1
    """Successive neighbours on the last axis in one thread, at most 16. A vector access may be this wide."""
    uneven: bool = False
    """Whether only some threads run it, or store its results."""
    stores: tuple[str, ...] = ()
    """Buffers that it writes to, ``name (scope)`` each."""
    threads: tuple[str, ...] = ()
    """Which threads do each of a few iterations, as `written_threads` writes them; empty where that is not known."""


class Layouts(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """The layouts of a kernel, in the order of its statements; at most `MOST` of each kind."""

    fragments: tuple[FragmentFacts, ...] = ()
    loops: tuple[LoopFacts, ...] = ()
    shared: tuple[SharedFacts, ...] = ()

    @property
    def slots(self) -> int:
        """Elements of all fragments that fit one thread's part."""
        return sum(fragment.slots for fragment in self.fragments)

    @property
    def registers(self) -> int:
        """32-bit registers that all fragments take of a thread, if they all lived at once."""
        return sum(fragment.registers for fragment in self.fragments)

    @property
    def iterations(self) -> int:
        """Iterations of all parallel loops of each thread."""
        return sum(loop.slots for loop in self.loops)

    @property
    def redundant(self) -> int:
        """Iterations of all parallel loops that a thread does beyond an even share."""
        return sum(loop.redundant for loop in self.loops)


MOST = 64
"""Limit for each kind, because a journal keeps a candidate's facts in one line."""


class Picture(msgspec.Struct, frozen=True):
    """Which thread holds which element of a fragment: its first rows and columns.

    `threads`, `slots`: by row and column. If several threads hold an element, the first of them counts.
    """

    name: str
    shape: tuple[int, ...]
    replication: int
    threads: tuple[tuple[int, ...], ...]
    slots: tuple[tuple[int, ...], ...]


def written_threads(threads: Iterable[int]) -> str:
    """Return threads as text, such as ``0-3 64-124:4``: first, last and step; empty where that takes many ranges."""
    left, parts = sorted(set(threads)), list[str]()
    while left and len(parts) <= MOST_RANGES:
        length, step = _run(left)
        first, last = left[0], left[length - 1]
        parts.append(f"{first}" if length == 1 else f"{first}-{last}" + f":{step}" * (step > 1))
        left = left[length:]
    return "" if len(parts) > MOST_RANGES else " ".join(parts)


def _run(threads: Sequence[int]) -> tuple[int, int]:
    """Return how many of `threads` follow each other in equal steps from the first on, and the step."""
    if len(threads) == 1:
        return 1, 1
    length, step = 2, threads[1] - threads[0]
    while length < len(threads) and threads[length] - threads[length - 1] == step:
        length += 1
    return length, step


@lru_cache(1024)
def parsed_threads(text: str) -> frozenset[int]:
    """Return the threads that `written_threads` wrote."""
    found = set[int]()
    for part in text.split():
        span, _, step = part.partition(":")
        first, _, last = span.partition("-")
        found.update(range(int(first), int(last or first) + 1, int(step or 1)))
    return frozenset(found)
