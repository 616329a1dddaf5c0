"""`atune.layout`: alternatives as plain values, and what a kernel makes of them."""

from __future__ import annotations

import math
from typing import Any

import pytest

from atune import layout
from atune.errors import SpaceError
from atune.model.candidate import normalise


def test_every_alternative_is_plain_data() -> None:
    for axis in (layout.fragments("rows"), layout.loops()):
        assert normalise(axis, "axis") == axis and len(set(axis)) == len(axis) > 1


@pytest.mark.parametrize("names", [("compiler",), ("threads",), ("two words",), ("rows", "rows"), (3,)])
def test_a_name_that_cannot_be_a_layout_of_the_user_s_is_refused(names: tuple[Any, ...]) -> None:
    with pytest.raises(SpaceError, match=f"{names[0]!r} is no name for a layout of your own"):
        layout.fragments(*names)


def test_a_value_of_another_axis_is_refused() -> None:
    for wrong in ("replicated", "2", "vector"):
        with pytest.raises(ValueError, match=f"'{wrong}' is no value of layout.loops"):
            layout.loop(wrong, 512, threads=128)


@pytest.mark.parametrize(
    ("width", "extents", "threads", "slots"),
    [
        (2, (4, 2560), 256, 40),
        (8, (4, 2560), 256, 40),
        (8, (4, 4096), 256, 64),
        (4, (2, 2, 64), 32, 8),
        (1, (512,), 128, 4),
    ],
)
def test_a_loop_layout_gives_each_element_to_one_thread(
    width: int, extents: tuple[int, ...], threads: int, slots: int
) -> None:
    made = layout.loop(f"vector{width}", *extents, threads=threads)
    assert (int(made.get_thread_size()), int(made.replicate_size)) == (threads, 1)
    shape = [int(size) for size in made.get_output_shape()]
    assert shape == [slots]
    assert slots * threads == math.prod(extents)
