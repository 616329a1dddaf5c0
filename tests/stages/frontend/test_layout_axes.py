"""`atune.layout`: alternatives as plain values, and what a kernel makes of them."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from stage_runs import session_of

from atune import layout
from atune.errors import SpaceError
from atune.model.candidate import normalise
from atune.stages.compile.lowering import lower
from atune.workload.pickling import FileRef
from atune.workload.source_locations import detail_of, place_of

TESTS = Path(__file__).parents[2]
EXAMPLES = TESTS.parent / "examples"


def test_every_alternative_is_plain_data() -> None:
    for axis in (layout.fragments("rows"), layout.loops()):
        assert normalise(axis, "axis") == axis and len(set(axis)) == len(axis) > 1


def test_a_width_that_is_no_power_of_two_is_refused() -> None:
    for width in (3, 0, True, "2"):
        with pytest.raises(SpaceError, match=f"layout.loops: width {width!r} is no power of two"):
            layout.loops(2, width)  # type: ignore[arg-type]


@pytest.mark.parametrize("names", [("compiler",), ("threads",), ("two words",), ("rows", "rows"), (3,)])
def test_a_name_that_cannot_be_a_layout_of_the_user_s_is_refused(names: tuple[Any, ...]) -> None:
    with pytest.raises(SpaceError, match=f"{names[0]!r} is no name for a layout of your own"):
        layout.fragments(*names)


def test_a_list_of_the_user_s_own_fragments_is_an_axis(tmp_path: Path) -> None:
    """Four numbers in 128 threads: 32 neighbours hold each, or every fourth; a name without a function is refused."""
    with session_of(FileRef(str(TESTS / "layout_axes_kernels.py"), "HELD"), tmp_path) as candidates:
        *own, unknown = [one for one in candidates if one.config["held"] not in ("compiler", "replicated")]
        lowered = [lower(candidate) for candidate in own]
        with pytest.raises(ValueError, match=r"'missing' is no alternative; .*'replicated', 'near', 'far'"):
            lower(unknown)
    assert [one.config["held"] for one in own] == ["near", "far"] and len({one.code_key for one in lowered}) == 2
    for each in lowered:
        assert each.facts.layouts is not None
        [held] = each.facts.layouts.fragments
        assert (held.slots, held.replication) == (1, 32)


def test_a_value_of_another_axis_is_refused() -> None:
    with pytest.raises(ValueError, match=r"'vector2' is no alternative; use 'compiler', 'replicated'$"):
        layout.hold("vector2", threads=128)
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


@pytest.mark.parametrize(
    ("width", "extents", "message"),
    [(8, (4, 100), "vectors of 8 do not divide .* 100"), (8, (2, 2560), "256 threads do not share 2 rows of 320")],
)
def test_a_loop_that_does_not_come_out_even_is_refused(width: int, extents: tuple[int, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        layout.loop(f"vector{width}", *extents, threads=256)


def test_a_width_for_coalescing_reaches_the_loop(tmp_path: Path) -> None:
    """A loop of the compiler's own layout takes it: two elements a run in place of eight."""
    with session_of(FileRef(str(EXAMPLES / "layout_broadcast.py"), "UNEVEN"), tmp_path) as candidates:
        narrow = {"block_rows": 2, "threads": 64, "held": "replicated", "loop": "compiler", "coalesced": 2}
        codes = {
            coalesced: lower(candidate).code_key
            for coalesced in (0, 2)
            for candidate in candidates
            if candidate.config == {**narrow, "coalesced": coalesced}
        }
    assert len(codes) == 2 == len(set(codes.values()))


def test_a_layout_that_does_not_fit_is_refused_at_the_loops_line(tmp_path: Path) -> None:
    """tilelang gives the head of a loop the first line of the file."""
    file = EXAMPLES / "layout_broadcast.py"
    [head] = [n for n, line in enumerate(file.read_text().splitlines(), 1) if "in layout.parallel(" in line]
    with session_of(FileRef(str(file), "UNEVEN"), tmp_path) as candidates:
        uneven = {"block_rows": 2, "threads": 256, "held": "compiler", "loop": "vector8", "coalesced": 0}
        [candidate] = [one for one in candidates if one.config == uneven]
        with pytest.raises(ValueError, match="256 threads do not share 2 rows") as raised:
            lower(candidate)
    place = place_of(raised.value)
    assert place is not None and (place.file, place.line) == (str(file), head)
    assert place.source.startswith("for r, c in layout.parallel(") and f"line {head}, in main" in detail_of(
        raised.value
    )
