"""Layouts of a kernel: which thread holds which elements and does which iterations, and which of several to measure."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from atune.model.ranges import Whole, Word

COMPILER = "compiler"
"""The value of a layout axis that leaves the choice to tilelang."""


class LayoutAxis(tuple[Any, ...]):
    """The values of an axis of layouts, which a run may choose from before it measures: see `choose`."""

    __slots__ = ()


class FragmentFacts(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """A buffer in registers. `slots`: elements that fit each thread's part."""

    name: str
    dtype: Word
    shape: tuple[Whole, ...]
    slots: Whole
    replication: Whole = 1
    """How many threads hold each element."""

    @property
    def registers(self) -> int:
        """32-bit registers that a thread's elements take."""
        bits = re.search(r"\d+", self.dtype)
        return math.ceil(self.slots * (int(bits[0]) if bits else 8) / 32)


class LoopFacts(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """A parallel loop. `slots`: iterations of each thread."""

    extents: tuple[Whole, ...]
    slots: Whole
    replication: Whole = 1
    """How many threads do each iteration."""
    redundant: Whole = 0
    """Iterations of a thread beyond an even share: slots minus ceil(iterations / threads)."""
    width: Whole = 1
    """Successive neighbours on the last axis in one thread, at most 16. A vector access may be this wide."""
    access_bits: Whole = 0
    """Bits of global memory that a thread can move in one access, at most 128; 0 where the loop touches none."""
    uneven: bool = False
    """Whether only some threads run it, or store its results."""
    stores: tuple[str, ...] = ()
    """Buffers that it writes to, ``name (scope)`` each."""
    threads: tuple[str, ...] = ()
    """Which threads do each of a few iterations, as `mask_of` writes them; empty where that is not known."""
    by_source: tuple[str, Whole] = ("", 0)
    """The fragment that inference may lay it out by, and a thread's iterations then; empty where none is known."""

    @property
    def repeated(self) -> float:
        """How many times its even share of the iterations a thread does."""
        return self.slots / max(1, self.slots - self.redundant)


class Layouts(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """The layouts of a kernel, in the order of its statements; at most `MOST_LAYOUTS` of each kind."""

    fragments: tuple[FragmentFacts, ...] = ()
    loops: tuple[LoopFacts, ...] = ()

    @property
    def registers(self) -> int:
        """32-bit registers that all fragments take of a thread, if they all lived at once."""
        return sum(fragment.registers for fragment in self.fragments)

    @property
    def redundant(self) -> int:
        """Iterations of all parallel loops that a thread does beyond an even share."""
        return sum(loop.redundant for loop in self.loops)

    @property
    def access_bits(self) -> int:
        """Bits that a thread can move in one access, summed over the loops."""
        return sum(loop.access_bits for loop in self.loops)


MOST_LAYOUTS = 64
"""Limit for each kind, because a journal keeps a candidate's facts in one line."""


def mask_of(threads: Iterable[int]) -> str:
    """Return threads as a mask in hexadecimal digits, whose bit t stands for thread t."""
    return f"{sum(1 << thread for thread in set(threads)):x}"


CONTAINED = "its threads do what they do with another layout of the configuration, and more"
REDUNDANT = "its threads do more redundant work than with another layout of the configuration"
REGISTERS = "it takes more registers than another layout of the configuration that does no more work"
NARROW = "its accesses are narrower than with another layout of the configuration that costs no more"
TIED = "another layout of the configuration does the same work in as many registers"


class Alternative(msgspec.Struct, frozen=True):
    """One layout of a configuration. `index`: the candidate's. `layouts`: None where nothing is known of them.

    `valid`: whether it lowers, and its device can launch it. `own`: whether all of it is the compiler's own choice.
    """

    index: int
    layouts: Layouts | None = None
    valid: bool = True
    own: bool = False


class RejectedLayout(msgspec.Struct, frozen=True):
    """An alternative that is not worth measuring: `instead` of it there is that candidate, and `why`."""

    instead: int
    why: str


class LayoutSelection(msgspec.Struct, frozen=True):
    """The alternatives kept, the best first, and why each other is rejected. Invalid ones are in neither."""

    kept: tuple[int, ...]
    rejected: dict[int, RejectedLayout]


def choose(alternatives: Sequence[Alternative], most: int = 1) -> LayoutSelection:
    """Choose up to `most` of the layouts of one configuration; their order does not matter.

    Valid ones come first that contain no other. Among these the order is: least redundant work, fewest registers,
    widest accesses, the compiler's own, first in the space. One alternative is contained in another where, in each
    loop, the threads that do an iteration are among those that do it in the other.
    Alternatives without facts are kept in addition. If none is valid, only the compiler's own is kept.
    """
    valid = [one for one in alternatives if one.valid]
    if not valid:
        return LayoutSelection(tuple(one.index for one in alternatives if one.own), {})
    left, kept = [one for one in valid if one.layouts is not None], list[Alternative]()
    while left and len(kept) < most:
        minimal = [one for one in left if not any(_inside(other, one) for other in left)]
        kept.append(min(minimal, key=lambda one: (*_cost(one), not one.own, one.index)))
        left.remove(kept[-1])
    unknown = sorted(one.index for one in valid if one.layouts is None)
    rejected = {one.index: RejectedLayout(kept[0].index, _why(kept[0], one)) for one in left}
    return LayoutSelection((*(one.index for one in kept), *unknown), rejected)


def contained(one: Layouts, other: Layouts) -> bool:
    """Tell whether each loop's iterations have their threads in `one` among those in `other`, and some have fewer.

    A few iterations of each loop are looked at. Layouts of different loops are not comparable.
    """
    shapes = [[(loop.extents, len(loop.threads)) for loop in each.loops] for each in (one, other)]
    if shapes[0] != shapes[1] or not all(loop.threads for loop in one.loops):
        return False
    ours, theirs = ([int(mask, 16) for loop in each.loops for mask in loop.threads] for each in (one, other))
    return ours != theirs and all(a & b == a for a, b in zip(ours, theirs, strict=True))


def _inside(one: Alternative, other: Alternative) -> bool:
    return one.layouts is not None and other.layouts is not None and contained(one.layouts, other.layouts)


def _cost(one: Alternative) -> tuple[int, int, int]:
    """Return redundant iterations, registers, and less for wider accesses, of a thread."""
    assert one.layouts is not None
    return one.layouts.redundant, one.layouts.registers, -one.layouts.access_bits


def _why(best: Alternative, one: Alternative) -> str:
    if _inside(best, one):
        return CONTAINED
    reasons = zip(_cost(best), _cost(one), (REDUNDANT, REGISTERS, NARROW), strict=True)
    return next((why for mine, theirs, why in reasons if mine != theirs), TIED)
