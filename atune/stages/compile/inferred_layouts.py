"""The layouts that tilelang infers for a kernel, read while lowering it, and the threads that share a loop."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from atune.model.layouts import MOST, FragmentFacts, Layouts, LoopFacts, SharedFacts, written_threads
from atune.stages import tilelang
from atune.stages.compile.tir import bits_of

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
    """Return the facts of annotated `buffers` and `loops`, (buffer or loop, layout) each."""
    fragments = [_fragment(buffer, layout) for buffer, layout in buffers if _is_fragment(layout)]
    shared = [_shared(buffer, layout) for buffer, layout in buffers if not _is_fragment(layout)]
    return Layouts(
        fragments=tuple(fragments[:MOST]),
        loops=tuple(_loop(loop, layout) for loop, layout in loops[:MOST]),
        shared=tuple(shared[:MOST]),
    )


def _place(number: int, extents: Sequence[int]) -> tuple[int, ...]:
    """Return the indices of the iteration `number` of a loop nest, in row-major order."""
    place = []
    for extent in reversed(extents):
        number, index = divmod(number, extent)
        place.append(index)
    return tuple(reversed(place))


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


def _is_fragment(layout: Any) -> bool:
    return type(layout).__name__ == "Fragment"


def _ints(sizes: Any) -> tuple[int, ...]:
    return tuple(int(size) for size in sizes)


def _replication(layout: Any) -> int:
    return int(layout.replicate_size)


def _fragment(buffer: Any, layout: Any) -> FragmentFacts:
    return FragmentFacts(
        name="".join(str(buffer.name)),
        dtype="".join(str(buffer.dtype)),
        shape=_ints(buffer.shape),
        slots=math.prod(_ints(layout.get_output_shape())),
        replication=_replication(layout),
    )


def _shared(buffer: Any, layout: Any) -> SharedFacts:
    return SharedFacts(
        name="".join(str(buffer.name)),
        dtype="".join(str(buffer.dtype)),
        shape=_ints(buffer.shape),
        swizzled=not _row_major(layout),
    )


def _row_major(layout: Any) -> bool:
    """Tell whether a few rows of a layout follow each other unchanged. Swizzles move parts of rows."""
    shape = _ints(layout.get_input_shape())
    columns = shape[-1]
    for row in range(min(8, math.prod(shape[:-1]))):
        outer = _place(row, shape[:-1])
        for column in range(0, columns, max(1, columns // 8)):
            if _linear(_substituted(layout, (*outer, column), layout.index), layout) != row * columns + column:
                return False
    return True


def _substituted(layout: Any, place: Sequence[int], expressions: Sequence[Any]) -> list[Any]:
    indices = list(layout.get_forward_vars())[-len(place) :]  # the one that counts the copies comes before them
    names = {variable: tilelang.tvm.tirx.IntImm("int32", i) for variable, i in zip(indices, place, strict=True)}
    return [tilelang.tvm.tirx.stmt_functor.substitute(expression, names) for expression in expressions]


def _holder(layout: Any, place: Sequence[int]) -> tuple[int, int]:
    """Return the first thread that has an element, and its slot there."""
    zero = tilelang.tvm.tirx.IntImm("int32", 0)
    thread, *index = _substituted(layout, place, [layout.thread, *layout.index])
    rest = dict.fromkeys(tilelang.tvm.tirx.analysis.undefined_vars(thread), zero)  # the variable that counts the copies
    thread = tilelang.tvm.tirx.stmt_functor.substitute(thread, rest)
    return int(tilelang.tvm.arith.Analyzer().simplify(thread)), _linear(index, layout)


def _linear(indices: Sequence[Any], layout: Any) -> int:
    """Return constant indices into a layout's output as one number, in row-major order."""
    analyzer, number = tilelang.tvm.arith.Analyzer(), 0
    for index, extent in zip(indices, _ints(layout.get_output_shape()), strict=True):
        number = number * extent + int(analyzer.simplify(index))
    return number


def _loop(loop: Any, layout: Any) -> LoopFacts:
    extents, slots = _ints(layout.get_input_shape()), math.prod(_ints(layout.get_output_shape()))
    threads, replication = int(layout.get_thread_size()), _replication(layout)
    iterations = math.prod(extents)
    guarded = any("predicate" in str(name) for name in loop.annotations)
    width, touched = _width(layout, extents), _touched(loop)
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
        threads=threads_of(layout, extents, replication),
    )


def _width(layout: Any, extents: Sequence[int]) -> int:
    first = (0,) * (len(extents) - 1)
    thread, slot = _holder(layout, (*first, 0))
    width = 1
    while width < min(WIDEST, extents[-1]) and _holder(layout, (*first, width)) == (thread, slot + width):
        width += 1
    return width


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


def threads_of(layout: Any, extents: Sequence[int], replication: int) -> tuple[str, ...]:
    """Return the threads that do the first, the last and each 2^n-th iteration; empty where that is not understood."""
    if replication > MOST_THREADS:
        return ()
    try:
        thread = _evaluator(layout.thread)
    except ValueError:
        return ()
    placed = list(layout.get_forward_vars())[-len(extents) :]
    copies = [
        one for one in tilelang.tvm.tirx.analysis.undefined_vars(layout.thread) if not any(map(one.same_as, placed))
    ]
    if len(copies) > 1:
        return ()
    found = []
    for place in _iterations(extents):
        here = dict(zip(placed, place, strict=True))
        of_copies = ({**here, **dict.fromkeys(copies, copy)} for copy in range(replication))
        found.append(written_threads(map(thread, of_copies)))
    return tuple(found) if all(found) else ()


def _iterations(extents: Sequence[int]) -> list[tuple[int, ...]]:
    total = math.prod(extents)
    numbers = sorted({0, total - 1, *(1 << bit for bit in range((total - 1).bit_length()))})
    return [_place(number, extents) for number in numbers]


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
