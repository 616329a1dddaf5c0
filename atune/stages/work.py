"""Work of a block: products, copies and arithmetic, which are read from the kernel before lowering.

A statement counts as many times as a block runs it. If this number differs between blocks, its average counts. Values
that depend on loop variables, such as a guard at the end of a tensor, are estimated from a sample. Values that depend
on a call or on a thread's number are unknown. A value is an int if it is the same in all blocks, or else an array with
one entry for each block. For large grids and for loops, the array holds samples.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from atune.model.artifact import Access, BlockWork, Gemm
from atune.stages import tilelang

PARALLEL, VECTORIZED = 1, 2
"""Kinds of loops in tilelang: loops over threads, and loops over vector lanes."""
COPIES = frozenset({"tl.tileop.copy", "tl.tileop.async_copy", "tl.tileop.tma_copy"})
GEMMS = frozenset({"tl.tileop.gemm", "tl.tileop.wgmma_gemm", "tl.tileop.tcgen05_gemm"})
REDUCE = "tl.tileop.reduce"
IN_REGISTERS = frozenset({
    "tl.tileop.fill", REDUCE, "tl.tileop.cumsum", "tl.tileop.cummax", "tl.tileop.reducer_init",
    "tl.tileop.finalize_reducer", "tl.tileop.finalize_reducer_v2",
})  # fmt: skip
"""Operations on tiles that stay within the block's registers and shared memory."""
MMA_LANES = 4
"""Threads that share a row of a product's result (PTX ISA, the layouts of mma and wgmma)."""
SHUFFLE_OPS = 5
"""Operations that take a multiprocessor as long as a shuffle and a sum (CUDA C++ Programming Guide, throughput)."""
SPECIAL = frozenset({"exp", "exp2", "exp10", "log", "log2", "log1p", "rsqrt", "sqrt", "tanh", "sin", "cos", "pow",
                     "sigmoid", "erf"})  # fmt: skip
WARP = 32
"""Number of threads in a warp, and of banks in shared memory. A bank is 32 bits wide (CUDA C++ Programming Guide)."""
THREAD = frozenset({"tl.launch_thread_idx"})
HIDDEN = ("mma", "extern", "ldmatrix", "access_ptr", "address_of", "bulk", "cp_async")
"""Intrinsics whose names contain one of these parts do work that is unknown."""


def work_of(function: Any) -> BlockWork | None:
    """Return the work of a block of `function`, an elaborated PrimFunc; None if any part of the work is unknown."""
    try:
        reader = _Reader(tensors=list(function.buffer_map.values()))
        reader.statement(function.body, _Place())
        return reader.work()
    except Exception:  # `Unknown`, or a kernel that this module does not understand: it can still be lowered
        return None


@dataclass(frozen=True)
class _Place:
    """Context of a statement. `serial`: how often a block runs the statement, as an int or an array over the blocks.

    `parallel`: extents of the parallel loops around the statement, by loop variable. `width`: number of elements that
    the kernel asks a thread to move in one access.
    """

    serial: Any = 1
    parallel: Mapping[Any, int] = field(default_factory=dict)
    width: int | None = None

    def elements(self, variables: set[Any]) -> float:
        """Return the number of elements that a statement covers if its indices depend on `variables`."""
        return math.prod(extent for variable, extent in self.parallel.items() if variable in variables)

    @property
    def times(self) -> float:
        """Average number of times that a block runs the statement."""
        return mean(self.serial)

    @property
    def all_elements(self) -> int:
        return math.prod(self.parallel.values())


@dataclass
class _Reader:
    """Walks the statements of a kernel, and adds up their work."""

    tensors: Sequence[Any]
    grid: dict[Any, int] = field(default_factory=dict)
    """Extents of the grid, by variable. Extents that depend on the call are omitted."""
    blocks: dict[Any, Any] = field(default_factory=dict)
    """Values over the blocks, of each grid variable and of each variable that is computed from grid variables."""
    loops: dict[Any, Any] = field(default_factory=dict)
    """Extents of the loops, by loop variable."""
    axes: dict[Any, set[str]] = field(default_factory=dict)
    """Axes of the grid on which bound variables, and the data of variables that are assigned to, depend."""
    own: set[Any] = field(default_factory=set)
    """Variables that depend on a thread's number."""
    threads: int = 1
    gemms: list[Gemm] = field(default_factory=list)
    sums: dict[Any, int] = field(default_factory=dict)
    """Index in `gemms` of the product whose result, or a copy of it, a fragment holds. Keys are data of fragments."""
    reads: list[Access] = field(default_factory=list)
    writes: list[Access] = field(default_factory=list)
    shared_bytes: float = 0.0
    ops: float = 0.0
    special: float = 0.0
    exchanges: float = 0.0
    registers: int = 0
    """Bytes of arrays of single threads, for all threads together."""
    clock: int = 0
    """Number of statements so far."""
    held: dict[Any, list[int]] = field(default_factory=dict)
    """Bytes of each fragment, by its data, and the numbers of the first and the last statement that touch it."""
    spans: list[tuple[int, int]] = field(default_factory=list)
    """Numbers of the statements before each serial loop, and at its end; inner loops come first."""
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
            exchanges=self.exchanges,
            fragment_registers=-(-(self.registers + self.fragment_bytes()) // (4 * self.threads)),
            stages=self.stages,
            steps=self.pipelined or self.steps,
            threads=self.threads,
            tensor_bytes=size_of(self.tensors),
            block_order=self.order,
        )

    def fragment_bytes(self) -> int:
        """Return the most bytes of fragments that hold values between two statements."""
        alive = list[tuple[int, int, int]]()
        for size, first, last in self.held.values():
            for begin, end in self.spans:  # the loop's next iteration needs what was there before the loop
                last = end if first <= begin < last <= end else last
            alive.append((size, first, last))
        return max(sum(size for size, first, last in alive if first <= at < last) for at in range(self.clock + 1))

    # ---- statements

    def statement(self, node: Any, place: _Place) -> None:
        kind = type(node).__name__
        visit = getattr(self, f"_{kind}", None)
        if visit is None:
            raise Unknown(kind)
        if kind in ("BufferStore", "Evaluate"):
            self._hold(node)
        visit(node, place)

    def _hold(self, node: Any) -> None:
        """Note which fragments a statement touches."""
        self.clock += 1
        for child in nodes_of(node):
            buffer = getattr(child, "buffer", None)
            if buffer is not None and str(buffer.scope()) == "local.fragment":
                self.held.setdefault(buffer.data, [buffer_bytes(buffer), self.clock, 0])[2] = self.clock

    def _SeqStmt(self, node: Any, place: _Place) -> None:
        for statement in node.seq:
            self.statement(statement, place)

    def _SBlockRealize(self, node: Any, place: _Place) -> None:
        self.statement(node.block, place)

    def _SBlock(self, node: Any, place: _Place) -> None:
        threads = node.annotations.get("tl.launch_threads")
        if threads is not None:
            self.threads = math.prod(int(n) for n in threads)
        for buffer in node.alloc_buffers:
            size = buffer_bytes(buffer)
            scope = str(buffer.scope())
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
        times = max(extent, 0) if isinstance(extent, int) else extent.clip(min=0)  # a negative extent does not run
        inner = replace(place, serial=place.serial * times)
        if (stages := node.annotations.get("num_stages")) is not None and int(stages) >= self.stages:
            self.stages, self.pipelined = int(stages), max(self.pipelined, inner.times)
        before = self.clock
        self.statement(node.body, inner)
        self.spans.append((before, self.clock))

    def _bound(self, node: Any, place: _Place) -> None:
        """Read a loop that stands for the blocks or for the threads along one axis."""
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
        if condition is None and self._guards_an_edge(node.condition, place):
            condition = 1
        if condition is None:
            raise Unknown(f"a branch on {node.condition}")
        self.expression(node.condition, place)
        self.statement(node.then_case, replace(place, serial=place.serial * condition))
        if node.else_case is not None:
            self.statement(node.else_case, replace(place, serial=place.serial * (1 - condition)))

    def _guards_an_edge(self, condition: Any, place: _Place) -> bool:
        """Tell whether `condition` keeps a tile's loop below a bound of the block, which most blocks do not reach."""
        nodes = nodes_of(condition)
        return any(node in place.parallel for node in variables_of(condition)) and not any(
            type(node).__name__ == "BufferLoad" for node in nodes
        )

    def _BufferStore(self, node: Any, place: _Place) -> None:
        self.touch(node.buffer, node.indices, place, store=True)
        if str(node.buffer.scope()) == "local.var":
            self.axes.setdefault(node.buffer.data, set()).update(self.axes_of(node.value))
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
            if name == REDUCE:
                self._reduce(call, place)
        else:
            self.expression(call, place)

    def _reduce(self, call: Any, place: _Place) -> None:
        """Count the exchanges between the threads that share a row; each halves the number of partial results."""
        source, row, _ = region(call.args[0])
        rows = elements_of(region(call.args[1])[1])
        columns = max(1, elements_of(row) // rows)
        sharing = MMA_LANES if source.data in self.sums else min(WARP, -(-columns // 4))
        sharing = max(1, self.threads // rows, min(sharing, self.threads))
        levels = math.ceil(math.log2(min(sharing, columns)))
        # The threads of a single warp each keep another row's result, so that the rows wait for each other.
        self.exchanges += place.times * levels * (rows if self.threads <= WARP else 1)
        self.ops += place.times * rows * sharing * levels * SHUFFLE_OPS

    def _gemm(self, call: Any, place: _Place) -> None:
        m, n, k, policy = (self.value(call.args[i]) for i in (5, 6, 7, 8))
        if not all(isinstance(size, int) for size in (m, n, k)) or place.parallel:
            raise Unknown("a product of unknown shape")
        first = region(call.args[0])[0]
        gemm = Gemm(m=m, n=n, k=k, calls=place.times, dtype=text_of(first.dtype))
        in_registers = str(first.scope()).startswith("local")
        if in_registers and (feeding := self.sums.get(first.data)) is not None:
            self.gemms[feeding] = msgspec.structs.replace(self.gemms[feeding], feeds=True)
        sums = region(call.args[2])[0]
        self.sums[sums.data] = len(self.gemms)
        policy = policy if isinstance(policy, int) else 0
        more = {"policy": policy, "in_registers": in_registers, "sum_bits": element_bits(sums.dtype)}
        self.gemms.append(msgspec.structs.replace(gemm, **more))
        self.steps = max(self.steps, place.times)

    def _copy(self, call: Any, place: _Place) -> None:
        regions = [region(argument) for argument in call.args[:2]]
        source, target = (buffer for buffer, _, _ in regions)
        self.sums.pop(target.data, None)
        if source.data in self.sums and str(target.scope()) == "local.fragment":
            self.sums[target.data] = self.sums[source.data]
        elements = min(elements_of(extents) for _, extents, _ in regions)
        for (buffer, _, indices), store in zip(regions, (False, True), strict=True):
            n_bytes = place.times * place.all_elements * elements * element_bits(buffer.dtype) / 8
            row = int(max(extents[-1] for _, extents, _ in regions))
            self._moved(buffer, indices, n_bytes, place, store, uneven=not store and row & (row - 1) != 0)

    # ---- expressions

    def expression(self, node: Any, place: _Place) -> None:
        """Count the loads and the arithmetic in `node`."""
        kind = type(node).__name__
        if kind == "BufferLoad":
            self.touch(node.buffer, node.indices, place, store=False)
            return  # compilers fold most arithmetic of indices
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
            raise Unknown("work that differs between threads")
        n_bytes = place.times * place.elements(variables) * element_bits(buffer.dtype) / 8
        if str(buffer.scope()).startswith("shared"):
            n_bytes *= self.waste(buffer, indices, place.parallel)
        self._moved(buffer, indices, n_bytes, place, store)

    def waste(self, buffer: Any, indices: Any, parallel: Mapping[Any, int]) -> float:
        """Return the factor by which bank conflicts multiply the cost of an access to shared memory.

        The threads of a warp run successive iterations. Threads whose words are in the same bank take turns. If
        successive threads access successive elements, the elements are moved together without a conflict.
        """
        import numpy as np

        lanes = np.arange(WARP)
        values = dict.fromkeys((variable for index in indices for variable in variables_of(index)), 0)
        for variable, extent in reversed([*parallel.items()]):
            values[variable], lanes = lanes % extent, lanes // extent
        place: Any = 0
        for index, size in zip(indices, buffer.shape, strict=True):
            if (at := evaluated(index, values)) is None:
                return 1.0
            place = place * int(size) + at
        bits = element_bits(buffer.dtype)
        if np.ndim(place) == 0 or place[1] - place[0] in (0, 1):
            return 1.0
        words = np.unique(place * bits // 32)
        return float(np.bincount(words % WARP).max() * 32 / bits)

    def _moved(
        self, buffer: Any, indices: Any, n_bytes: float, place: _Place, store: bool, uneven: bool = False
    ) -> None:
        scope = str(buffer.scope())
        if scope.startswith("shared"):
            self.shared_bytes += n_bytes
        if scope != "global":
            return
        axes = "".join(sorted(set().union(*(self.axes_of(index) for index in indices))))
        width = None if place.width is None else place.width * element_bits(buffer.dtype) // 8
        access = Access(n_bytes, axes, place.times, width, size_of([buffer]), uneven)
        (self.writes if store else self.reads).append(access)
        self.steps = max(self.steps, place.times)

    def axes_of(self, node: Any) -> set[str]:
        loads = (child.buffer.data for child in nodes_of(node) if type(child).__name__ == "BufferLoad")
        return set().union(*(self.axes.get(variable, set()) for variable in (*variables_of(node), *loads)))

    def value(self, node: Any) -> Any:
        """Return the value of an expression: an int, an array over the blocks, or None for an unknown value."""
        kind = type(node).__name__
        if kind == "IntImm":
            return int(node.value)
        if kind in ("Var", "SizeVar"):
            if node in self.loops and node not in self.blocks:
                arrays = (array for array in self.blocks.values() if getattr(array, "ndim", 0))
                points = next(map(len, arrays), MOST_BLOCKS)
                self.blocks[node] = sampled(self.loops[node], len(self.loops), points)
            return self.blocks.get(node)
        if kind == "Cast":
            return self.value(node.value)
        if kind in BINARY or kind in ("Min", "Max", "And", "Or"):
            a, b = self.value(node.a), self.value(node.b)
            return None if a is None or b is None else combined(kind, a, b)
        return None


# ---- reading TIR


def evaluated(node: Any, values: Mapping[Any, Any]) -> Any:
    """Return an expression's value for `values` of its variables, which may be arrays; None if it is unknown."""
    return _Reader(tensors=(), blocks={**values}).value(node)


class Unknown(Exception):
    """Some of the kernel's work depends on a call, or cannot be determined."""


def region(node: Any) -> tuple[Any, tuple[Any, ...], Any]:
    """Return the buffer, extents and indices of a part of a tensor. Raises `Unknown` for other expressions."""
    if name_of(node) != "tl.region":
        raise Unknown(f"a region as {type(node).__name__}")
    load, _, *extents = node.args
    return load.buffer, tuple(extents), load.indices


def name_of(node: Any) -> str:
    """Return the name of the operation that an expression calls; empty for other expressions."""
    return str(getattr(node.op, "name", node.op)) if type(node).__name__ == "Call" else ""


def elements_of(extents: Any) -> int:
    """Return the product of `extents`. Raises `Unknown` if an extent depends on the call."""
    if not all(type(extent).__name__ in ("IntImm", "int") for extent in extents):
        raise Unknown(f"a shape of {extents}")
    return math.prod(int(extent) for extent in extents)


def buffer_bytes(buffer: Any) -> int:
    """Return the size of a buffer in bytes. Raises `Unknown` if the buffer's shape depends on the call."""
    return elements_of(buffer.shape) * element_bits(buffer.dtype) // 8


def size_of(buffers: Sequence[Any]) -> int | None:
    """Return the bytes of all `buffers`; None if a shape depends on the call."""
    try:
        return sum(map(buffer_bytes, buffers))
    except Unknown:
        return None


def element_bits(dtype: Any) -> int:
    """Return the number of bits in an element, including all lanes of the element."""
    kind = tilelang.tvm.DataType(text_of(dtype))
    return int(kind.bits) * int(kind.lanes)


def text_of(value: Any) -> str:
    """Return a TVM string, a constant or a dtype as a plain string."""
    inner = getattr(value, "value", value)
    return "".join(str(inner))


def parts_of(node: Any) -> Iterator[Any]:
    """Yield the operands of an expression."""
    if type(node).__name__ == "Call":
        yield from (argument for argument in node.args if hasattr(argument, "dtype"))
        return
    for name in ("a", "b", "value", "condition", "true_value", "false_value"):
        part = getattr(node, name, None)
        if hasattr(part, "dtype"):
            yield part


def nodes_of(root: Any) -> list[Any]:
    """Return all statements and expressions below `root`."""
    nodes: list[Any] = []
    tilelang.tvm.tirx.stmt_functor.post_order_visit(root, nodes.append)
    return nodes


def variables_of(node: Any) -> list[Any]:
    """Return the variables of an expression, including variables in the indices of loads."""
    return [child for child in nodes_of(node) if type(child).__name__ in ("Var", "SizeVar")]


MOST_BLOCKS = 4096
"""Largest number of blocks over which averages are taken. For a larger grid, evenly spaced blocks are used."""
PRIMES = (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37)
BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "Add": operator.add, "Sub": operator.sub, "Mul": operator.mul, "FloorDiv": operator.floordiv,
    "FloorMod": operator.mod, "LT": operator.lt, "LE": operator.le, "GT": operator.gt, "GE": operator.ge,
    "EQ": operator.eq, "NE": operator.ne,
}  # fmt: skip


def combined(kind: str, a: Any, b: Any) -> Any:
    """Apply the TIR operation named `kind` to two values. Return None for a division by zero."""
    if kind in ("FloorDiv", "FloorMod") and isinstance(b, int) and b == 0:
        return None
    if kind in BINARY:
        return _plain(BINARY[kind](a, b))
    import numpy as np

    chosen = {"Min": np.minimum, "Max": np.maximum, "And": np.logical_and, "Or": np.logical_or}[kind]
    return _plain(chosen(a, b))


def _plain(value: Any) -> Any:
    """Return a number as an int, and an array as an array of integers."""
    if getattr(value, "ndim", 0):
        return value.astype("int64")
    return int(value)


def values_of(grid: Mapping[Any, int]) -> dict[Any, Any]:
    """Return the values of each grid variable over all blocks. For a large grid, use evenly spaced blocks."""
    import numpy as np

    whole = math.prod(grid.values()) <= MOST_BLOCKS
    most = MOST_BLOCKS if whole else int(MOST_BLOCKS ** (1 / len(grid)))
    points = [
        np.arange(extent) if extent <= most else np.linspace(0, extent - 1, most).round().astype("int64")
        for extent in grid.values()
    ]
    planes = [axis.ravel() for axis in np.meshgrid(*points, indexing="ij")]
    again = max(1, MOST_BLOCKS // len(planes[0]))  # so that a sample of loops has enough points
    return dict(zip(grid, (np.repeat(plane, again) for plane in planes), strict=True))


def sampled(extent: Any, number: int, points: int) -> Any:
    """Return values of a loop variable that are spread evenly over its extent. Each `number` gives other values."""
    import numpy as np

    step = math.sqrt(PRIMES[number % len(PRIMES)])  # irrational, so that no value is missed
    spread = (np.arange(points) + 0.5) * step % 1.0
    return np.floor(spread * np.maximum(extent, 0)).astype("int64")


def mean(times: Any) -> float:
    """Return the average over the blocks."""
    return float(times if isinstance(times, int) else times.mean())
