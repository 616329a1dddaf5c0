"""Which layouts of one configuration are worth measuring: a choice by what lowering tells of each."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from atune.model.layouts import Layouts, LoopFacts, parsed_threads

CONTAINED = "its threads do what they do with another layout of the configuration, and more"
REDUNDANT = "its threads do more redundant work than with another layout of the configuration"
REGISTERS = "it takes more registers than another layout of the configuration that does no more work"
TIED = "another layout of the configuration does the same work in as many registers"


class Alternative(msgspec.Struct, frozen=True):
    """One layout of a configuration. `index`: the candidate's. `layouts`: None where nothing is known of them.

    `valid`: whether it lowers, and its device can launch it. `own`: whether all of it is the compiler's own choice.
    """

    index: int
    layouts: Layouts | None = None
    valid: bool = True
    own: bool = False
    registers: int | None = None
    """Of a thread, where it is compiled; None takes those of the fragments."""


class Passed(msgspec.Struct, frozen=True):
    """An alternative that is not worth measuring: `instead` of it there is that candidate, and `why`."""

    instead: int
    why: str


class Choice(msgspec.Struct, frozen=True):
    """The alternatives kept, the best first, and why each other is passed over. Invalid ones are in neither."""

    kept: tuple[int, ...]
    passed: dict[int, Passed]


def choose(alternatives: Sequence[Alternative], most: int = 1) -> Choice:
    """Choose up to `most` of the layouts of one configuration; their order does not matter.

    Valid ones come first that contain no other. Among these the order is: least redundant work, fewest registers, the
    compiler's own, first in the space. One alternative is contained in
    another where, in each loop, the threads that do an iteration are among those that do it in the other.
    Alternatives without facts are kept besides. If none is valid, only the compiler's own is kept.
    """
    valid = [one for one in alternatives if one.valid]
    if not valid:
        return Choice(tuple(one.index for one in alternatives if one.own), {})
    left, kept = [one for one in valid if one.layouts is not None], list[Alternative]()
    compiled = all(one.registers is not None for one in left)
    while left and len(kept) < most:
        kept.append(_best(left, compiled))
        left.remove(kept[-1])
    unknown = sorted(one.index for one in valid if one.layouts is None)
    passed = {one.index: Passed(kept[0].index, _why(kept[0], one, compiled)) for one in left}
    return Choice((*(one.index for one in kept), *unknown), passed)


def contained(one: Layouts, other: Layouts) -> bool:
    """Tell whether each loop's iterations have their threads in `one` among those in `other`, and some have fewer.

    A few iterations of each loop are looked at. Layouts of different loops are not comparable.
    """
    pairs = list(zip(one.loops, other.loops, strict=False))
    if len(one.loops) != len(other.loops) or not all(_comparable(a, b) for a, b in pairs):
        return False
    sets = [
        (parsed_threads(mine), parsed_threads(theirs))
        for a, b in pairs
        for mine, theirs in zip(a.threads, b.threads, strict=True)
    ]
    return all(mine <= theirs for mine, theirs in sets) and any(mine < theirs for mine, theirs in sets)


def _comparable(one: LoopFacts, other: LoopFacts) -> bool:
    return one.extents == other.extents and bool(one.threads) and len(one.threads) == len(other.threads)


def _best(left: Sequence[Alternative], compiled: bool) -> Alternative:
    minimal = [one for one in left if not any(_inside(other, one) for other in left)]
    return min(minimal, key=lambda one: (*_cost(one, compiled), not one.own, one.index))


def _inside(one: Alternative, other: Alternative) -> bool:
    return one.layouts is not None and other.layouts is not None and contained(one.layouts, other.layouts)


def _cost(one: Alternative, compiled: bool) -> tuple[int, int]:
    """Return redundant iterations and registers, of a thread."""
    assert one.layouts is not None
    registers = one.registers if compiled and one.registers is not None else one.layouts.registers
    return one.layouts.redundant, registers


def _why(best: Alternative, one: Alternative, compiled: bool) -> str:
    if _inside(best, one):
        return CONTAINED
    mine, theirs = _cost(best, compiled), _cost(one, compiled)
    if mine[0] != theirs[0]:
        return REDUNDANT
    return REGISTERS if mine[1] != theirs[1] else TIED
