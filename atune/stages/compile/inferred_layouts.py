"""The layouts that tilelang infers for a kernel, read while lowering it, and the threads that share a loop."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from atune.model.layouts import MOST, FragmentFacts, Layouts, LoopFacts, mask_of
from atune.stages import tilelang
from atune.stages.compile.work import bits_of

INFERENCE = "tl.LayoutInference"
WIDEST = 16
"""Neighbours that are examined for a loop's width."""
WIDEST_BITS = 128
"""Of one access of a thread (CUDA C++ Programming Guide, device memory accesses)."""


class Seen:
    """A kernel's layouts. `layouts` is None until layout inference is over, and if they are not understood."""

    def __init__(self) -> None:
        self.layouts: Layouts | None = None

    def read(self, module: Any) -> None:
        """Read a module after layout inference. It never raises, because the kernel is lowered in any case."""
        try:
            buffers, loops = _annotated(module)
            self.layouts = layouts_of(buffers, loops)
        except Exception:
            return


def instruments(seen: Seen) -> list[Any]:
    """Return the instruments for the `PassContext` in which a kernel is lowered. They fill `seen`."""

    class Instrument:
        def run_after_pass(self, module: Any, info: Any) -> None:
            if str(info.name) == INFERENCE:
                seen.read(module)

    return [tilelang.tvm.instrument.pass_instrument(Instrument)()]


def layouts_of(buffers: Sequence[tuple[Any, Any]], loops: Sequence[tuple[Any, Any]]) -> Layouts:
    """Return the facts of annotated `buffers` in registers and `loops`, (buffer or loop, layout) each."""
    fragments = [_fragment(*pair) for pair in buffers if type(pair[1]).__name__ == "Fragment"]
    return Layouts(fragments=tuple(fragments[:MOST]), loops=tuple(_loop(*pair) for pair in loops[:MOST]))


def _annotated(module: Any) -> tuple[list[tuple[Any, Any]], list[tuple[Any, Any]]]:
    """Return the buffers and the loops that have a layout, in the order of the statements."""
    buffers: dict[Any, tuple[Any, Any]] = {}
    loops: list[tuple[Any, Any]] = []

    def visit(node: Any) -> None:
        kind = type(node).__name__
        if kind == "SBlock" and "layout_map" in node.annotations:
            for buffer, layout in node.annotations["layout_map"].items():
                buffers.setdefault(buffer, (buffer, layout))
        elif kind == "For" and "parallel_loop_layout" in node.annotations:
            loops.append((node, node.annotations["parallel_loop_layout"]))

    for function in module.functions.values():
        if hasattr(function, "body"):
            tilelang.tvm.tirx.stmt_functor.post_order_visit(function.body, visit)
    return list(buffers.values()), loops


def _ints(sizes: Any) -> tuple[int, ...]:
    return tuple(int(size) for size in sizes)


def _fragment(buffer: Any, layout: Any) -> FragmentFacts:
    return FragmentFacts(
        name="".join(str(buffer.name)),
        dtype="".join(str(buffer.dtype)),
        shape=_ints(buffer.shape),
        slots=math.prod(_ints(layout.get_output_shape())),
        replication=int(layout.replicate_size),
    )


def _loop(loop: Any, layout: Any) -> LoopFacts:
    extents, slots = _ints(layout.get_input_shape()), math.prod(_ints(layout.get_output_shape()))
    threads, replication = int(layout.get_thread_size()), int(layout.replicate_size)
    iterations = math.prod(extents)
    guarded = any("predicate" in str(name) for name in loop.annotations)
    holder, copies = _holder(layout, len(extents))
    width, touched = _width(holder, extents), _touched(loop)
    bits = [bits_of(node.buffer.dtype) for _, node in touched if str(node.buffer.scope()) in ("", "global")]
    return LoopFacts(
        extents=extents,
        slots=slots,
        replication=replication,
        redundant=max(0, slots - -(-iterations // threads)),
        width=width,
        access_bits=min(WIDEST_BITS, width * max(bits, default=0)),
        uneven=guarded or iterations * replication < slots * threads,
        stores=_stores(touched),
        threads=_threads(holder, extents, replication) if copies < 2 else (),
    )


Holder = Callable[[Sequence[int], int], tuple[int, int]]
"""Returns the thread that has an element, and its slot there, from the element's indices and the number of the copy."""


def _holder(layout: Any, dimensions: int) -> tuple[Holder | None, int]:
    """Return who holds a layout's elements, None where it is not understood, and how many variables count copies."""
    placed = list(layout.get_forward_vars())[-dimensions:]  # the one that counts the copies comes before them
    names = tilelang.tvm.tirx.analysis.undefined_vars(layout.thread)
    copies = [one for one in names if not any(map(one.same_as, placed))]
    try:
        thread, *index = map(_evaluator, (layout.thread, *layout.index))
    except ValueError:
        return None, len(copies)
    sizes = _ints(layout.get_output_shape())

    def holder(place: Sequence[int], copy: int) -> tuple[int, int]:
        values = {**dict(zip(placed, place, strict=True)), **dict.fromkeys(copies, copy)}
        slot = 0
        for one, size in zip(index, sizes, strict=True):
            slot = slot * size + one(values)
        return thread(values), slot

    return holder, len(copies)


def _width(holder: Holder | None, extents: Sequence[int]) -> int:
    if holder is None:
        return 1
    first, width = (0,) * (len(extents) - 1), 1
    thread, slot = holder((*first, 0), 0)
    while width < min(WIDEST, extents[-1]) and holder((*first, width), 0) == (thread, slot + width):
        width += 1
    return width


def _threads(holder: Holder | None, extents: Sequence[int], replication: int) -> tuple[str, ...]:
    """Return the threads that do the first, the last and each 2^n-th iteration; empty where that is not understood."""
    if holder is None or replication > MOST_THREADS:
        return ()
    places = _iterations(extents)
    return tuple(mask_of(holder(place, copy)[0] for copy in range(replication)) for place in places)


def _iterations(extents: Sequence[int]) -> list[tuple[int, ...]]:
    total = math.prod(extents)
    numbers = sorted({0, total - 1, *(1 << bit for bit in range((total - 1).bit_length()))})
    return [_place(number, extents) for number in numbers]


def _place(number: int, extents: Sequence[int]) -> tuple[int, ...]:
    """Return the indices of the iteration `number` of a loop nest, in row-major order."""
    place = []
    for extent in reversed(extents):
        number, index = divmod(number, extent)
        place.append(index)
    return tuple(reversed(place))


def _touched(loop: Any) -> list[tuple[str, Any]]:
    """Return the loads and stores of a loop, each with its kind of node."""
    found: list[tuple[str, Any]] = []

    def visit(node: Any) -> None:
        if (kind := type(node).__name__) in ("BufferLoad", "BufferStore"):
            found.append((kind, node))

    tilelang.tvm.tirx.stmt_functor.post_order_visit(loop.body, visit)
    return found


def _stores(touched: Sequence[tuple[str, Any]]) -> tuple[str, ...]:
    stored = (node.buffer for kind, node in touched if kind == "BufferStore")
    return tuple(dict.fromkeys(f"{buffer.name} ({str(buffer.scope()) or 'global'})" for buffer in stored))


Evaluate = Callable[[Mapping[Any, int]], int]
MOST_THREADS = 1024
"""Threads of an iteration that are looked at: a block has no more."""
_OPERATORS: Mapping[str, Callable[[int, int], int]] = {
    "Add": operator.add,
    "Sub": operator.sub,
    "Mul": operator.mul,
    "FloorDiv": operator.floordiv,
    "FloorMod": operator.mod,
    "Min": min,
    "Max": max,
}


def _evaluator(expression: Any) -> Evaluate:
    """Return a function from variables' values to an integer expression's. Raises `ValueError` for other nodes."""
    kind = type(expression).__name__
    if kind == "IntImm":
        value = int(expression.value)
        return lambda values: value
    if kind == "Var":
        return lambda values: values[expression]
    if kind == "Cast":
        return _evaluator(expression.value)
    if kind in _OPERATORS:
        call, one, other = _OPERATORS[kind], _evaluator(expression.a), _evaluator(expression.b)
        return lambda values: call(one(values), other(values))
    raise ValueError(f"no integer expression of indices: {kind}")
