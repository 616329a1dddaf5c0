"""Layouts of a kernel, which assign elements and iterations to threads, and the choice of layouts to measure."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from atune.model.ranges import Whole, Word

COMPILER = "compiler"
"""The value that leaves the choice of a layout to tilelang."""


class LayoutAxis(tuple[Any, ...]):
    """An axis whose values are layouts. With the option `layouts`, only the best layouts are measured: see `choose`."""

    __slots__ = ()


class FragmentFacts(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """A buffer in registers. `slots`: number of elements that each thread holds."""

    name: str
    dtype: Word
    shape: tuple[Whole, ...]
    slots: Whole
    replication: Whole = 1
    """Number of threads that hold the same element."""

    @property
    def registers(self) -> int:
        """Number of 32-bit registers for the elements of a thread."""
        bits = re.search(r"\d+", self.dtype)
        return math.ceil(self.slots * (int(bits[0]) if bits else 8) / 32)


class LoopFacts(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """A parallel loop. `slots`: number of iterations per thread."""

    extents: tuple[Whole, ...]
    slots: Whole
    replication: Whole = 1
    """Number of threads that execute the same iteration."""
    redundant: Whole = 0
    """Number of iterations by which a thread exceeds an even share: slots - ceil(iterations / threads)."""
    width: Whole = 1
    """How many successive elements on the last axis a thread handles, at most 16. A vector access can be this wide."""
    access_bits: Whole = 0
    """Bits that a thread can move in one access to global memory, at most 128; 0 if the loop has no such access."""
    uneven: bool = False
    """Whether some threads do not run the loop, or do not store its results."""
    stores: tuple[str, ...] = ()
    """The buffers that the loop writes to, each as ``name (scope)``."""
    threads: tuple[str, ...] = ()
    """Masks of the threads that execute each of a few iterations, as in `mask_of`; empty if unknown."""
    by_source: tuple[str, Whole] = ("", 0)
    """A fragment whose layout tilelang may use for the loop, and the iterations per thread then; else ``("", 0)``."""

    @property
    def repeated(self) -> float:
        """A thread's number of iterations, divided by an even share."""
        return self.slots / max(1, self.slots - self.redundant)


class Layouts(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """The layouts of a kernel, in the order of its statements. There are at most `MOST_LAYOUTS` of each kind."""

    fragments: tuple[FragmentFacts, ...] = ()
    loops: tuple[LoopFacts, ...] = ()

    @property
    def registers(self) -> int:
        """Number of 32-bit registers per thread, if all fragments were live at the same time."""
        return sum(fragment.registers for fragment in self.fragments)

    @property
    def redundant(self) -> int:
        """Number of iterations by which a thread exceeds an even share, summed over all loops."""
        return sum(loop.redundant for loop in self.loops)

    @property
    def access_bits(self) -> int:
        """Number of bits that a thread can move in one access, summed over all loops."""
        return sum(loop.access_bits for loop in self.loops)


MOST_LAYOUTS = 64
"""Largest number of layouts of each kind, because a journal has all facts of a candidate in one line."""


def mask_of(threads: Iterable[int]) -> str:
    """Return a set of threads as a hexadecimal mask, in which bit t stands for thread t."""
    return f"{sum(1 << thread for thread in set(threads)):x}"


CONTAINED = "its threads do all the work of another layout of the same configuration, and more"
REDUNDANT = "its threads do more redundant work than another layout of the same configuration"
REGISTERS = "it takes more registers than another layout of the same configuration, which does no more work"
NARROW = "its accesses are narrower than in another layout of the same configuration, which costs no more"
TIED = "another layout of the same configuration does the same work with the same number of registers"


class Alternative(msgspec.Struct, frozen=True):
    """One layout of a configuration. `index`: the candidate's index. `layouts`: None if they are unknown.

    `valid`: whether the candidate lowers, and the device can launch it. `own`: whether the compiler chose all layouts.
    """

    index: int
    layouts: Layouts | None = None
    valid: bool = True
    own: bool = False


class RejectedLayout(msgspec.Struct, frozen=True):
    """An alternative that is not worth measuring, because candidate `instead` is better for the reason `why`."""

    instead: int
    why: str


class LayoutSelection(msgspec.Struct, frozen=True):
    """The alternatives to measure, best first, and the rejected alternatives. Invalid alternatives are in neither."""

    kept: tuple[int, ...]
    rejected: dict[int, RejectedLayout]


def choose(alternatives: Sequence[Alternative], most: int = 1) -> LayoutSelection:
    """Choose up to `most` layouts of a configuration. The order of `alternatives` does not matter.

    Only valid alternatives that contain no other alternative are considered. The criteria are, in this order: least
    redundant work, fewest registers, widest accesses, the compiler's own choice, first in the space. An alternative
    contains another if, in each loop, the threads that execute an iteration include all threads that execute the same
    iteration in the other alternative. Alternatives without facts are always kept. If no alternative is valid, the
    compiler's choice is kept.
    """
    valid = [a for a in alternatives if a.valid]
    if not valid:
        return LayoutSelection(tuple(a.index for a in alternatives if a.own), {})
    left, kept = [a for a in valid if a.layouts is not None], list[Alternative]()
    while left and len(kept) < most:
        minimal = [a for a in left if not any(_inside(b, a) for b in left)]
        kept.append(min(minimal, key=lambda a: (*_cost(a), not a.own, a.index)))
        left.remove(kept[-1])
    unknown = sorted(a.index for a in valid if a.layouts is None)
    rejected = {a.index: RejectedLayout(kept[0].index, _why(kept[0], a)) for a in left}
    return LayoutSelection((*(a.index for a in kept), *unknown), rejected)


def contained(a: Layouts, b: Layouts) -> bool:
    """Return whether `a` runs each iteration on a subset of its threads in `b`, and at least one on fewer threads.

    Only a few iterations of each loop are compared. If the loops differ, the layouts cannot be compared.
    """
    shapes = [[(loop.extents, len(loop.threads)) for loop in layouts.loops] for layouts in (a, b)]
    if shapes[0] != shapes[1] or not all(loop.threads for loop in a.loops):
        return False
    in_a, in_b = ([int(mask, 16) for loop in layouts.loops for mask in loop.threads] for layouts in (a, b))
    return in_a != in_b and all(mask & other == mask for mask, other in zip(in_a, in_b, strict=True))


def _inside(a: Alternative, b: Alternative) -> bool:
    return a.layouts is not None and b.layouts is not None and contained(a.layouts, b.layouts)


def _cost(alternative: Alternative) -> tuple[int, int, int]:
    """Return a thread's redundant iterations, its registers, and the negative width of its accesses."""
    assert alternative.layouts is not None
    return alternative.layouts.redundant, alternative.layouts.registers, -alternative.layouts.access_bits


def _why(best: Alternative, rejected: Alternative) -> str:
    if _inside(best, rejected):
        return CONTAINED
    reasons = zip(_cost(best), _cost(rejected), (REDUNDANT, REGISTERS, NARROW), strict=True)
    return next((why for lower, higher, why in reasons if lower != higher), TIED)
