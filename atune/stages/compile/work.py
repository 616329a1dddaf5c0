"""Work of a block, from the kernel before lowering: products, copies and arithmetic.

A statement counts as often as the loops around it run. That may depend on the block; then it is the average over the
grid. Values that depend on loop variables, such as a guard at a tensor's end, are estimated from a sample. Values that
only a call has, or that depend on a thread's number, are unknown.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from atune.model.artifact import Access, BlockWork, Gemm
from atune.stages.compile.tir import (
    BINARY,
    MOST_BLOCKS,
    Unknown,
    at_least_none,
    bits_of,
    combined,
    elements_of,
    mean,
    name_of,
    parts_of,
    region,
    sampled,
    size_of,
    text_of,
    values_of,
    variables_of,
)

PARALLEL, VECTORIZED = 1, 2
"""tilelang's kinds of loops over threads and over lanes."""
COPIES = frozenset({"tl.tileop.copy", "tl.tileop.async_copy", "tl.tileop.tma_copy"})
GEMMS = frozenset({"tl.tileop.gemm", "tl.tileop.wgmma_gemm", "tl.tileop.tcgen05_gemm"})
IN_REGISTERS = frozenset({
    "tl.tileop.fill", "tl.tileop.reduce", "tl.tileop.cumsum", "tl.tileop.cummax", "tl.tileop.reducer_init",
    "tl.tileop.finalize_reducer", "tl.tileop.finalize_reducer_v2",
})  # fmt: skip
"""Operations on tiles that move nothing between global memory and the block."""
SPECIAL = frozenset({"exp", "exp2", "exp10", "log", "log2", "log1p", "rsqrt", "sqrt", "tanh", "sin", "cos", "pow",
                     "sigmoid", "erf"})  # fmt: skip
THREAD = frozenset({"tl.launch_thread_idx"})
HIDDEN = ("mma", "extern", "ldmatrix", "access_ptr", "address_of", "bulk", "cp_async")
"""Parts of the names of intrinsics whose work is unknown here."""


def work_of(function: Any) -> BlockWork | None:
    """Return the work of a block of `function`, an elaborated PrimFunc; None if any of it is unknown."""
    try:
        reader = _Reader(tensors=list(function.buffer_map.values()))
        reader.statement(function.body, _Place())
        return reader.work()
    except Exception:  # `Unknown`, or a kernel that this module does not understand: it is lowered all the same
        return None


@dataclass(frozen=True)
class _Place:
    """Context of a statement. `serial`: how often a block runs it, or an array of that for each block.

    `parallel`: extents of the parallel loops around it by variable. `threads`: how often threads repeat it on their
    own. `width`: elements that the kernel asks a thread to move at once.
    """

    serial: Any = 1
    parallel: Mapping[Any, int] = field(default_factory=dict)
    width: int | None = None

    def elements(self, variables: set[Any]) -> float:
        """Return how many elements a statement covers whose indices are in `variables`."""
        return math.prod(extent for variable, extent in self.parallel.items() if variable in variables)

    @property
    def times(self) -> float:
        """How often a block runs it."""
        return mean(self.serial)

    @property
    def all_elements(self) -> int:
        return math.prod(self.parallel.values())


@dataclass
class _Reader:
    """Walks the statements and sums up their work."""

    tensors: Sequence[Any]
    grid: dict[Any, int] = field(default_factory=dict)
    """Variables of the grid with their extents, without those that depend on the call."""
    blocks: dict[Any, Any] = field(default_factory=dict)
    """For each of them, and for values computed from them, an array over the blocks."""
    loops: dict[Any, Any] = field(default_factory=dict)
    """Variables of the loops, and their extents."""
    axes: dict[Any, set[str]] = field(default_factory=dict)
    """Axes of the grid that bound names depend on."""
    own: set[Any] = field(default_factory=set)
    """Names that depend on a thread's number."""
    threads: int = 1
    gemms: list[Gemm] = field(default_factory=list)
    sums: dict[Any, int] = field(default_factory=dict)
    """Data of the fragments that hold a product's result, or a copy of it, with its place in `gemms`."""
    reads: list[Access] = field(default_factory=list)
    writes: list[Access] = field(default_factory=list)
    shared_bytes: float = 0.0
    ops: float = 0.0
    special: float = 0.0
    registers: int = 0
    stages: int = 0
    steps: float = 1.0
    pipelined: float = 0.0
    order: str = ""

    def work(self) -> BlockWork:
        return BlockWork(
            gemms=tuple(self.gemms),
            reads=tuple(self.reads),
            writes=tuple(self.writes),
            shared_bytes=self.shared_bytes,
            scalar_ops=self.ops,
            special_ops=self.special,
            fragment_registers=-(-self.registers // (4 * self.threads)),
            stages=self.stages,
            steps=self.pipelined or self.steps,
            threads=self.threads,
            tensor_bytes=self.tensor_bytes(),
            block_order=self.order,
        )

    def tensor_bytes(self) -> int | None:
        try:
            return sum(size_of(buffer) for buffer in self.tensors)
        except Unknown:
            return None

    # ---- statements

    def statement(self, node: Any, place: _Place) -> None:
        kind = type(node).__name__
        visit = getattr(self, f"_{kind}", None)
        if visit is None:
            raise Unknown(kind)
        visit(node, place)

    def _SeqStmt(self, node: Any, place: _Place) -> None:
        for one in node.seq:
            self.statement(one, place)

    def _SBlockRealize(self, node: Any, place: _Place) -> None:
        self.statement(node.block, place)

    def _SBlock(self, node: Any, place: _Place) -> None:
        threads = node.annotations.get("tl.launch_threads")
        if threads is not None:
            self.threads = math.prod(int(n) for n in threads)
        for buffer in node.alloc_buffers:
            size = size_of(buffer)
            scope = str(buffer.scope())
            self.registers += size if scope == "local.fragment" else 0
            self.registers += size * self.threads if scope == "local" else 0
        self.statement(node.body, place)

    def _AttrStmt(self, node: Any, place: _Place) -> None:
        if node.attr_key == "threadblock_swizzle_pattern":
            self.order = " ".join(text_of(argument) for argument in node.value.args)
        self.statement(node.body, place)

    def _Bind(self, node: Any, place: _Place) -> None:
        value = self.value(node.value)
        if value is not None:
            self.blocks[node.var] = value
        self.axes[node.var] = self.axes_of(node.value)
        if name_of(node.value) in THREAD or self.own.intersection(variables_of(node.value)):
            self.own.add(node.var)
        else:
            self.expression(node.value, place)

    def _For(self, node: Any, place: _Place) -> None:
        if node.thread_binding is not None:
            return self._bound(node, place)
        extent = self.value(node.extent)
        if extent is None:
            raise Unknown(f"a loop of {node.extent}")
        self.loops[node.loop_var] = extent
        if node.kind in (PARALLEL, VECTORIZED):
            if not isinstance(extent, int):
                raise Unknown(f"a parallel loop of {node.extent}")
            width = node.annotations.get("coalesced_width")
            inner = replace(place, parallel={**place.parallel, node.loop_var: extent})
            return self.statement(node.body, inner if width is None else replace(inner, width=int(width)))
        inner = replace(place, serial=place.serial * at_least_none(extent))
        if (stages := node.annotations.get("num_stages")) is not None and int(stages) >= self.stages:
            self.stages, self.pipelined = int(stages), max(self.pipelined, inner.times)
        self.statement(node.body, inner)

    def _bound(self, node: Any, place: _Place) -> None:
        """Read a loop over the blocks, or threads, of one axis."""
        tag, extent = str(node.thread_binding.thread_tag), self.value(node.extent)
        if tag.startswith("threadIdx.") and isinstance(extent, int):  # as tilelang 0.1.14 launches threads
            self.threads *= extent
            self.own.add(node.loop_var)
            return self.statement(node.body, place)
        if not tag.startswith("blockIdx."):
            raise Unknown(tag)
        self.axes[node.loop_var] = {tag[-1]}
        if isinstance(extent, int):
            self.grid[node.loop_var] = extent
            self.blocks.update(values_of(self.grid))
        self.statement(node.body, place)

    def _IfThenElse(self, node: Any, place: _Place) -> None:
        condition = self.value(node.condition)
        if condition is None:
            raise Unknown(f"a branch on {node.condition}")
        self.expression(node.condition, place)
        self.statement(node.then_case, replace(place, serial=place.serial * condition))
        if node.else_case is not None:
            self.statement(node.else_case, replace(place, serial=place.serial * (1 - condition)))

    def _BufferStore(self, node: Any, place: _Place) -> None:
        self.touch(node.buffer, node.indices, place, store=True)
        for part in (node.value, *node.indices):
            self.expression(part, place)

    def _Evaluate(self, node: Any, place: _Place) -> None:
        call = node.value
        if type(call).__name__ != "Call":
            return
        name = name_of(call)
        if name in GEMMS:
            self._gemm(call, place)
        elif name in COPIES:
            self._copy(call, place)
        elif name in IN_REGISTERS:
            self.ops += place.times * place.all_elements * elements_of(region(call.args[0])[1])
        else:
            self.expression(call, place)

    def _gemm(self, call: Any, place: _Place) -> None:
        m, n, k, policy = (self.value(call.args[i]) for i in (5, 6, 7, 8))
        if not all(isinstance(size, int) for size in (m, n, k)) or place.parallel:
            raise Unknown("a product of unknown shape")
        first = region(call.args[0])[0]
        gemm = Gemm(m=m, n=n, k=k, calls=place.times, dtype=text_of(first.dtype))
        in_registers = str(first.scope()).startswith("local")
        if in_registers and (feeding := self.sums.get(first.data)) is not None:
            self.gemms[feeding] = msgspec.structs.replace(self.gemms[feeding], feeds=True)
        self.sums[region(call.args[2])[0].data] = len(self.gemms)
        policy = policy if isinstance(policy, int) else 0
        self.gemms.append(msgspec.structs.replace(gemm, policy=policy, in_registers=in_registers))
        self.steps = max(self.steps, place.times)

    def _copy(self, call: Any, place: _Place) -> None:
        regions = [region(argument) for argument in call.args[:2]]
        source, target = (buffer for buffer, _, _ in regions)
        self.sums.pop(target.data, None)
        if source.data in self.sums and str(target.scope()) == "local.fragment":
            self.sums[target.data] = self.sums[source.data]
        elements = min(elements_of(extents) for _, extents, _ in regions)
        for (buffer, _, indices), store in zip(regions, (False, True), strict=True):
            n_bytes = place.times * place.all_elements * elements * bits_of(buffer.dtype) / 8
            self._moved(buffer, indices, n_bytes, place, store)

    # ---- expressions

    def expression(self, node: Any, place: _Place) -> None:
        """Count the loads and the arithmetic in `node`."""
        kind = type(node).__name__
        if kind == "BufferLoad":
            self.touch(node.buffer, node.indices, place, store=False)
            return  # arithmetic of indices is mostly folded
        if kind == "Call":
            name = name_of(node)
            if name.startswith("tl.tileop.") or any(part in name for part in HIDDEN):
                raise Unknown(name)
            self._count(place, special=name.rpartition(".")[2] in SPECIAL)
        elif kind not in ("Var", "SizeVar", "IntImm", "FloatImm", "StringImm"):
            self._count(place, special=kind == "Div")
        for part in parts_of(node):
            self.expression(part, place)

    def _count(self, place: _Place, special: bool) -> None:
        times = place.times * place.all_elements
        self.special += times if special else 0.0
        self.ops += 0.0 if special else times

    def touch(self, buffer: Any, indices: Any, place: _Place, store: bool) -> None:
        """Count the elements of `buffer` that one statement covers."""
        variables = {variable for index in indices for variable in variables_of(index)}
        if self.own & variables:
            raise Unknown("what each thread does by itself")
        n_bytes = place.times * place.elements(variables) * bits_of(buffer.dtype) / 8
        self._moved(buffer, indices, n_bytes, place, store)

    def _moved(self, buffer: Any, indices: Any, n_bytes: float, place: _Place, store: bool) -> None:
        scope = str(buffer.scope())
        if scope.startswith("shared"):
            self.shared_bytes += n_bytes
        if scope != "global":
            return
        axes = "".join(sorted(set().union(*(self.axes_of(index) for index in indices))))
        width = None if place.width is None else place.width * bits_of(buffer.dtype) // 8
        access = Access(n_bytes=n_bytes, axes=axes, steps=place.times, width=width)
        (self.writes if store else self.reads).append(access)
        self.steps = max(self.steps, place.times)

    def axes_of(self, node: Any) -> set[str]:
        return set().union(*(self.axes.get(variable, set()) for variable in variables_of(node)))

    def value(self, node: Any) -> Any:
        """Return an expression's value: an int, an array over the blocks, or None if it is unknown."""
        kind = type(node).__name__
        if kind == "IntImm":
            return int(node.value)
        if kind in ("Var", "SizeVar"):
            if node in self.loops and node not in self.blocks:
                self.blocks[node] = sampled(self.loops[node], len(self.loops), self._points())
            return self.blocks.get(node)
        if kind == "Cast":
            return self.value(node.value)
        if kind in BINARY or kind in ("Min", "Max", "And", "Or"):
            a, b = self.value(node.a), self.value(node.b)
            return None if a is None or b is None else combined(kind, a, b)
        return None

    def _points(self) -> int:
        """Return the number of blocks, or of points of a sample, in arrays."""
        return next((len(array) for array in self.blocks.values() if getattr(array, "ndim", 0)), MOST_BLOCKS)
