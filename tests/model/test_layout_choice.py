"""Of several layouts of one configuration: which are worth measuring, and why the others are not."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any

import pytest

from atune.model.layouts import (
    CONTAINED,
    NARROW,
    REDUNDANT,
    REGISTERS,
    TIED,
    Alternative,
    FragmentFacts,
    Layouts,
    LayoutSelection,
    LoopFacts,
    RejectedLayout,
    choose,
    mask_of,
)


def layouts(threads: Iterable[int], slots: int = 4, *, held: int = 4, loops: int = 1) -> Layouts:
    """Loops of 512 iterations among 128 threads, each iteration by `threads`, and a fragment of `held` slots."""
    loop = LoopFacts((128, 4), slots, len([*threads]), slots - 4, threads=(mask_of(threads),) * 3)
    return Layouts((FragmentFacts("held", "float32", (128, 4), held),), (loop,) * loops)


ALL, OWN, ONE, OTHER = layouts(range(128), 512), layouts(range(4), 16), layouts([0]), layouts([64])


def chosen(*found: Layouts | None, most: int = 1, own: int | None = None) -> LayoutSelection:
    """Return the choice, which does not depend on the order."""
    alternatives = [Alternative(index, one, own=index == own) for index, one in enumerate(found)]
    [choice] = {
        str(choose(order, most)): choose(order, most) for order in itertools.permutations(alternatives)
    }.values()
    return choice


MANY, FEW_LONG = layouts([64], held=16), layouts([0], 32)
THIN, WIDE = (Layouts(loops=(LoopFacts((512,), 4, access_bits=bits),)) for bits in (32, 128))
REPEATED = Layouts(loops=(LoopFacts((512,), 8, redundant=4, access_bits=128),))


@pytest.mark.parametrize(
    ("found", "own", "kept", "why"),
    [
        ((ALL, ONE), 0, 1, CONTAINED), ((ONE, ALL), 1, 0, CONTAINED),
        ((OWN, FEW_LONG), None, 1, CONTAINED),  # whose few threads have more iterations each
        ((OWN, OTHER), 0, 1, REDUNDANT), ((THIN, REPEATED), None, 0, REDUNDANT),
        ((MANY, ONE), 0, 1, REGISTERS), ((THIN, WIDE), 0, 1, NARROW),
        ((ONE, OTHER), 1, 1, TIED), ((ONE, OTHER), None, 0, TIED),
    ],
)  # fmt: skip
def test_of_two_layouts_the_better_is_chosen(found: Any, own: int | None, kept: int, why: str) -> None:
    """Containment goes first; then the least redundant work, the fewest registers, the widest accesses; the own."""
    assert chosen(*found, own=own) == LayoutSelection((kept,), {1 - kept: RejectedLayout(kept, why)})


def test_an_alternative_that_does_not_validate_is_never_chosen() -> None:
    found = [Alternative(0, ALL, own=True), Alternative(1, ONE, valid=False)]
    assert choose(found) == LayoutSelection((0,), {})


def test_where_none_validates_the_compilers_own_is_left() -> None:
    found = [Alternative(0, ONE, valid=False), Alternative(1, ALL, valid=False, own=True)]
    assert choose(found) == LayoutSelection((1,), {})


def test_the_top_few_come_best_first() -> None:
    assert chosen(ALL, OWN, OTHER, most=2) == LayoutSelection((2, 1), {0: RejectedLayout(2, CONTAINED)})
    assert chosen(ALL, OWN, ONE, most=5).kept == (2, 1, 0)


def test_layouts_of_which_nothing_is_known_are_kept_too() -> None:
    assert chosen(ALL, None, ONE) == LayoutSelection((2, 1), {0: RejectedLayout(2, CONTAINED)})


@pytest.mark.parametrize(
    "other", [layouts(range(4), 16, loops=2), Layouts(OWN.fragments, (LoopFacts((512,), 16, 4, 12),))]
)
def test_layouts_of_other_loops_are_compared_by_work_alone(other: Layouts) -> None:
    assert chosen(other, ONE).rejected[0].why == REDUNDANT


def test_registers_of_fragments_count_bits() -> None:
    fragments = (FragmentFacts("a", "float16", (64,), 3), FragmentFacts("b", "bool", (4,), 4))
    assert Layouts(fragments).registers == 2 + 1
