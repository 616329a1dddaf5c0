"""Facts that are known about a kernel before any compiler runs. The facts are read from the lowered code and the
inferred layouts, or predicted from the elaborated kernel."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from atune.model.artifact import BlockWork, StaticFacts
from atune.model.layouts import MOST_LAYOUTS, FragmentFacts, Layouts, LoopFacts, mask_of
from atune.stages import tilelang
from atune.stages.work import COPIES, buffer_bytes, element_bits, evaluated, nodes_of, region, work_of

_LOCAL_ARRAY = re.compile(
    r"^\s*(float|int|uint|half_t|bfloat16_t|double|signed char|uchar)\s+\w+\[(\d+)\];", re.MULTILINE
)
_BOUNDS = re.compile(r"__launch_bounds__\((\d+)(?:, (\d+))?\)")
_MORE = re.compile(r"warpgroup_reg_alloc<(\d+)>")
_FEWER = re.compile(r"warpgroup_reg_dealloc<(\d+)>")
_REGISTERS = 64 * 1024
"""Number of 32-bit registers in a multiprocessor with setmaxnreg (CUDA C++ Programming Guide, capability 9.0)."""
_BLOCKS = ("blockIdx.x", "blockIdx.y", "blockIdx.z")
_BYTES = {"double": 8, "half_t": 2, "bfloat16_t": 2, "signed char": 1, "uchar": 1}


def static_facts(kind: str, device: Any, source: str) -> StaticFacts:
    """Read facts from a lowered device module and its source. `kind`: ``cuda`` or ``c``."""
    if kind == "c":
        return StaticFacts(source_bytes=len(source))
    smem, threads = 0, 1
    grid: tuple[int, ...] = (1, 1, 1)
    for function in device.functions.values():
        attrs = dict(function.attrs or {})
        extents = dict(attrs.get("thread_extent", {}))
        extent = {str(k): int(v) for k, v in extents.items() if str(v).isdigit()}
        unknown = {str(k) for k in extents}.difference(extent)
        smem = max(smem, int(attrs.get("dyn_shared_memory_buf", 0)))
        block = [extent.get(f"threadIdx.{axis}", 1) for axis in "xyz"]
        threads = max(threads, block[0] * block[1] * block[2])
        grid = () if unknown.intersection(_BLOCKS) else tuple(extent.get(axis, 1) for axis in _BLOCKS)
    local = max((int(n) * _BYTES.get(t, 4) // 4 for t, n in _LOCAL_ARRAY.findall(source)), default=0)
    return StaticFacts(
        smem_bytes=smem,
        threads=threads,
        grid=grid,
        accumulators=local,
        source_bytes=len(source),
        lacking_registers=lacking_registers(source),
    )


def lacking_registers(source: str) -> int:
    """Return the number of registers that a block lacks for its ``setmaxnreg`` requests; 0 if there are enough.

    A block begins with as many registers per thread as its launch bounds allow, in steps of eight. The producer, which
    has 128 threads, releases registers. The consumers wait until they get the registers that they request (PTX ISA,
    «setmaxnreg»). If the block lacks registers, the consumers wait forever.
    """
    bounds, more, fewer = _BOUNDS.findall(source), _MORE.findall(source), _FEWER.findall(source)
    if len(bounds) != 1 or not more or not fewer:
        return 0
    threads, blocks = int(bounds[0][0]), int(bounds[0][1] or 1)
    asked = 128 * int(fewer[0]) + (threads - 128) * int(more[0])
    begins_with = min(_REGISTERS // (threads * max(blocks, 1)) // 8 * 8, 256) * threads
    return max(0, asked - begins_with)


def c_arguments(function: Any, device: Any) -> tuple[int | str, ...]:
    """Return, for each argument of the generated C function, a parameter's position or a symbolic dimension's name."""
    buffers = {
        str(function.buffer_map[v].data.name): i for i, v in enumerate(function.params) if v in function.buffer_map
    }
    scalars = {str(v.name): i for i, v in enumerate(function.params) if v not in function.buffer_map}
    kernels = list(device.functions.values())
    if len(kernels) != 1:
        return ()
    return tuple(buffers.get(str(v.name), scalars.get(str(v.name), str(v.name))) for v in kernels[0].params)


PRODUCERS = 128
"""Number of threads that tilelang adds for loads if it specialises warps, which happens on sm_90."""


def foreseen(function: Any, arch: str) -> StaticFacts:
    """Predict the facts of `function`, an elaborated PrimFunc. Unknown facts are omitted. Never raises an error."""
    try:
        return _foreseen(function, work_of(function), arch)
    except Exception:  # a kernel that this module does not understand can still be lowered
        return StaticFacts()


def _foreseen(function: Any, work: BlockWork | None, arch: str) -> StaticFacts:
    grid, threads, fragments, body = dict.fromkeys("xyz", 1), 1, [0], function.body
    for node in nodes_of(function.body):
        kind = type(node).__name__
        if kind == "For" and node.thread_binding is not None:
            tag = str(node.thread_binding.thread_tag)
            if tag.startswith("blockIdx."):
                grid[tag[-1]] = int(node.extent)
            elif tag.startswith("threadIdx."):  # as tilelang 0.1.14 launches threads
                threads *= int(node.extent)
                body = node.body.block.body if type(node.body).__name__ == "SBlockRealize" else body
        elif kind == "SBlock":
            if (asked := node.annotations.get("tl.launch_threads")) is not None:
                threads, body = math.prod(int(n) for n in asked), node.body
            fragments += [buffer_bytes(b) for b in node.alloc_buffers if str(b.scope()) == "local.fragment"]
    loads = _pipelined(body)
    bulk = arch.startswith("sm_90") and any(_rows_are_aligned(source) for source, _ in loads.values())
    return StaticFacts(
        smem_bytes=_shared_bytes(body, {data: stages for data, (_, stages) in loads.items()}),
        threads=threads + PRODUCERS * bulk,
        grid=tuple(grid.values()),
        accumulators=-(-max(fragments) // (4 * threads)),
        work=work,
    )


def _pipelined(body: Any) -> dict[Any, tuple[Any, int]]:
    """Return the shared buffers that pipelined loops load, each with its source tensor and number of stages."""
    loads = dict[Any, tuple[Any, int]]()
    for node in nodes_of(body):
        asked = node.annotations.get("num_stages") if type(node).__name__ == "For" else None
        if asked is None or int(asked) < 1:
            continue
        for call in nodes_of(node.body):
            if type(call).__name__ == "Call" and str(getattr(call.op, "name", "")) in COPIES:
                source, target = (region(argument)[0] for argument in call.args[:2])
                if str(source.scope()) == "global" and str(target.scope()).startswith("shared"):
                    loads[target.data] = source, max(int(asked), loads.get(target.data, (None, 1))[1])
    return loads


def _rows_are_aligned(tensor: Any) -> bool:
    """Tell whether TMA can load a tensor in bulk, which needs strides that are multiples of 16 bytes."""
    *strides, _ = [*tensor.strides] or [1]
    return all(
        int(stride) * element_bits(tensor.dtype) % 128 == 0 for stride in strides if type(stride).__name__ == "IntImm"
    )


def _shared_bytes(body: Any, stages: dict[Any, int]) -> int:
    """Return the bytes of shared memory that a block needs: the largest total of buffers that are in use together."""
    sizes, spans = dict[Any, int](), dict[Any, list[int]]()
    for number, statement in enumerate(_outermost(body)):
        for node in nodes_of(statement):
            buffer = getattr(node, "buffer", None)
            if buffer is not None and str(buffer.scope()).startswith("shared"):
                sizes[buffer.data] = buffer_bytes(buffer) * stages.get(buffer.data, 1)
                spans.setdefault(buffer.data, [number, number])[1] = number
    ends = {end for _, end in spans.values()}
    alive = (sum(sizes[data] for data, (a, b) in spans.items() if a <= at <= b) for at in ends)
    return max(alive, default=0)


def _outermost(node: Any) -> Iterator[Any]:
    """Yield the statements of a block in order, with each loop as a single statement."""
    kind = type(node).__name__
    if kind == "SeqStmt":
        for statement in node.seq:
            yield from _outermost(statement)
    elif kind == "AttrStmt":
        yield from _outermost(node.body)
    elif kind == "SBlockRealize":
        yield from _outermost(node.block.body)
    else:
        yield node


# ---- layouts

INFERENCE = "tl.LayoutInference"
WIDEST = 16
"""Number of neighbouring iterations on the last axis that are examined to find the width of a loop."""
WIDEST_BITS = 128
"""Most bits that one instruction of a thread can access (CUDA C++ Programming Guide, device memory accesses)."""
MOST_THREADS = 1024
"""Largest number of copies of an iteration that are examined, because a block has no more threads."""


def instruments(seen: list[Layouts]) -> list[Any]:
    """Return instruments that append a kernel's layouts to `seen`, for the `PassContext` in which it is lowered.

    If atune does not understand a layout, the instruments append nothing, and the kernel is still lowered.
    """

    class Instrument:
        def run_after_pass(self, module: Any, info: Any) -> None:
            if str(info.name) == INFERENCE:
                with suppress(Exception):
                    seen.append(layouts_of(module))

    return [tilelang.tvm.instrument.pass_instrument(Instrument)()]


def layouts_of(module: Any) -> Layouts:
    """Return the layouts of a module's fragments and parallel loops, in the order of the module's statements."""
    buffers: dict[Any, Any] = {}
    loops: list[tuple[Any, Any]] = []
    bodies = [function.body for function in module.functions.values() if hasattr(function, "body")]
    for node in (node for body in bodies for node in nodes_of(body)):
        kind = type(node).__name__
        if kind == "SBlock" and "layout_map" in node.annotations:
            for buffer, layout in node.annotations["layout_map"].items():
                buffers.setdefault(buffer, layout)
        elif kind == "For" and "parallel_loop_layout" in node.annotations:
            loops.append((node, node.annotations["parallel_loop_layout"]))
    held = {buffer: layout for buffer, layout in buffers.items() if type(layout).__name__ == "Fragment"}
    fragments = tuple(_fragment(*pair) for pair in [*held.items()][:MOST_LAYOUTS])
    return Layouts(fragments=fragments, loops=tuple(_loop(*pair, held) for pair in loops[:MOST_LAYOUTS]))


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


def _loop(loop: Any, layout: Any, fragments: Mapping[Any, Any]) -> LoopFacts:
    extents, slots = _ints(layout.get_input_shape()), math.prod(_ints(layout.get_output_shape()))
    threads, replication = int(layout.get_thread_size()), int(layout.replicate_size)
    iterations = math.prod(extents)
    width = _width(layout, extents)
    touched = [node for node in nodes_of(loop.body) if type(node).__name__ in ("BufferLoad", "BufferStore")]
    bits = [element_bits(node.buffer.dtype) for node in touched if str(node.buffer.scope()) in ("", "global")]
    stored = [node.buffer for node in touched if type(node).__name__ == "BufferStore"]
    return LoopFacts(
        extents=extents,
        slots=slots,
        replication=replication,
        redundant=max(0, slots - -(-iterations // threads)),
        width=width,
        access_bits=min(WIDEST_BITS, width * max(bits, default=0)),
        uneven=any("predicate" in str(name) for name in loop.annotations) or iterations * replication < slots * threads,
        stores=tuple(dict.fromkeys(f"{buffer.name} ({str(buffer.scope()) or 'global'})" for buffer in stored)),
        threads=_threads(layout, extents, replication),
        by_source=_by_source(loop, iterations, touched, fragments),
    )


def _by_source(loop: Any, iterations: int, touched: Sequence[Any], fragments: Mapping[Any, Any]) -> tuple[str, int]:
    """Return the fragment whose layout tilelang's ``ParallelOpNode`` may reuse, and a thread's iterations with it."""
    spans = {node.loop_var: str(node.extent) for node in nodes_of(loop) if type(node).__name__ == "For"}
    reads = [node for node in touched if type(node).__name__ == "BufferLoad" and node.buffer in fragments]
    source = max(reads, key=lambda node: len(node.indices), default=None)
    if source is None or [spans.get(index) for index in source.indices] != [*map(str, source.buffer.shape)]:
        return "", 0
    held = fragments[source.buffer]
    return str(source.buffer.name), iterations * int(held.replicate_size) // int(held.get_thread_size())


def _index_variables(layout: Any, dimensions: int) -> tuple[list[Any], list[Any]]:
    """Return the index variables of a layout, and the variables that number the copies of an iteration."""
    indices = list(layout.get_forward_vars())[-dimensions:]
    names = tilelang.tvm.tirx.analysis.undefined_vars(layout.thread)
    return indices, [name for name in names if not any(map(name.same_as, indices))]


def _width(layout: Any, extents: Sequence[int]) -> int:
    """Return the number of neighbours on the last axis that a thread holds in successive slots; 1 if it is unknown."""
    import numpy as np

    indices, copies = _index_variables(layout, len(extents))
    last = np.arange(min(WIDEST, extents[-1]))
    values = {**dict.fromkeys([*indices, *copies], 0), indices[-1]: last}
    thread, *places = (evaluated(expression, values) for expression in (layout.thread, *layout.index))
    if thread is None or any(place is None for place in places):
        return 1
    slot = 0 * last
    for place, size in zip(places, _ints(layout.get_output_shape()), strict=True):
        slot = slot * size + place
    thread = np.broadcast_to(thread, last.shape)
    successive = (thread == thread[0]) & (slot == slot[0] + last)
    return int(np.append(successive, False).argmin())


def _threads(layout: Any, extents: Sequence[int], replication: int) -> tuple[str, ...]:
    """Return masks of the threads that run the first, the last and each 2^n-th iteration; empty if they are unknown."""
    import numpy as np

    indices, copies = _index_variables(layout, len(extents))
    if replication > MOST_THREADS or len(copies) > 1:
        return ()
    total, masks = math.prod(extents), list[str]()
    for number in sorted({0, total - 1, *(1 << bit for bit in range((total - 1).bit_length()))}):
        place = map(int, np.unravel_index(number, extents))
        values = {**dict(zip(indices, place, strict=True)), **dict.fromkeys(copies, np.arange(replication))}
        thread = evaluated(layout.thread, values)
        if thread is None:
            return ()
        masks.append(mask_of(np.broadcast_to(thread, (replication,)).tolist()))
    return tuple(masks)
