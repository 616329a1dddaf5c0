"""Of several layouts of one configuration: which are worth measuring, and why the others are not."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

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


def test_of_a_loop_that_all_threads_do_the_layout_that_replicates_less_is_chosen() -> None:
    assert chosen(ALL, ONE, own=0) == LayoutSelection((1,), {0: RejectedLayout(1, CONTAINED)})
    assert chosen(ONE, ALL, own=1).kept == (0,)


def test_an_alternative_that_does_not_validate_is_never_chosen() -> None:
    found = [Alternative(0, ALL, own=True), Alternative(1, ONE, valid=False)]
    assert choose(found) == LayoutSelection((0,), {})


def test_where_none_validates_the_compilers_own_is_left() -> None:
    found = [Alternative(0, ONE, valid=False), Alternative(1, ALL, valid=False, own=True)]
    assert choose(found) == LayoutSelection((1,), {})


def test_where_neither_is_contained_in_the_other_the_least_redundant_work_decides() -> None:
    assert chosen(OWN, OTHER, own=0) == LayoutSelection((1,), {0: RejectedLayout(1, REDUNDANT)})


def test_then_the_fewest_registers_decide() -> None:
    many = layouts([64], held=16)
    assert chosen(many, ONE, own=0) == LayoutSelection((1,), {0: RejectedLayout(1, REGISTERS)})


def test_then_the_widest_accesses_decide() -> None:
    narrow, wide = (Layouts(loops=(LoopFacts((512,), 4, access_bits=bits),)) for bits in (32, 128))
    assert chosen(narrow, wide, own=0) == LayoutSelection((1,), {0: RejectedLayout(1, NARROW)})
    redundant = Layouts(loops=(LoopFacts((512,), 8, redundant=4, access_bits=128),))
    assert chosen(narrow, redundant).kept == (0,)


def test_the_compilers_own_stands_where_nothing_decides_and_else_the_first() -> None:
    assert chosen(ONE, OTHER, own=1) == LayoutSelection((1,), {0: RejectedLayout(1, TIED)})
    assert chosen(ONE, OTHER).kept == (0,)


def test_containment_goes_before_less_redundant_work() -> None:
    """A contained layout whose few threads have more iterations each."""
    contained = layouts([0], 32)
    assert chosen(OWN, contained).kept == (1,)


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
