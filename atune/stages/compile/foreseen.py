"""Predicts a kernel's lowered facts from the elaborated kernel.

Elaborating takes a tenth of lowering's time. The prediction follows lowering as far as the prior needs. Shared memory
is that of the buffers that live at the same time, with a copy for each stage. A producer warp group is counted if
tilelang uses one for loads.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from atune.model.artifact import StaticFacts, Work
from atune.stages.compile.tir import bits_of, region, size_of
from atune.stages.compile.work import COPIES, work_of

PRODUCERS = 128
"""Threads that tilelang adds for loads, if it specialises warps: only on sm_90."""


def foreseen(function: Any, arch: str) -> StaticFacts:
    """Return predicted facts of `function`, an elaborated PrimFunc, without the unknown ones. Raises nothing."""
    try:
        return _foreseen(function, work_of(function), arch)
    except Exception:  # a kernel that this module does not understand is lowered all the same
        return StaticFacts()


def _foreseen(function: Any, work: Work | None, arch: str) -> StaticFacts:
    grid, threads, fragments, body = dict.fromkeys("xyz", 1), 1, [0], function.body
    for node in _nodes(function.body):
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
            fragments += [size_of(b) for b in node.alloc_buffers if str(b.scope()) == "local.fragment"]
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
    """Return the shared buffers that pipelined loops load, each with its source tensor and its stages."""
    found = dict[Any, tuple[Any, int]]()
    for node in _nodes(body):
        asked = node.annotations.get("num_stages") if type(node).__name__ == "For" else None
        if asked is None or int(asked) < 1:
            continue
        for call in _nodes(node.body):
            if type(call).__name__ == "Call" and str(getattr(call.op, "name", "")) in COPIES:
                source, target = (region(argument)[0] for argument in call.args[:2])
                if str(source.scope()) == "global" and str(target.scope()).startswith("shared"):
                    found[target.data] = source, max(int(asked), found.get(target.data, (None, 1))[1])
    return found


def _rows_are_aligned(tensor: Any) -> bool:
    """Tell whether a tensor can be loaded in bulk: TMA needs strides that are multiples of 16 bytes."""
    *strides, _ = [*tensor.strides] or [1]
    return all(
        int(stride) * bits_of(tensor.dtype) % 128 == 0 for stride in strides if type(stride).__name__ == "IntImm"
    )


def _shared_bytes(body: Any, stages: dict[Any, int]) -> int:
    """Return a block's bytes of shared memory: the maximum that lives between two of its outermost statements."""
    sizes, spans = dict[Any, int](), dict[Any, list[int]]()
    for number, statement in enumerate(_outermost(body)):
        for node in _nodes(statement):
            buffer = getattr(node, "buffer", None)
            if buffer is not None and str(buffer.scope()).startswith("shared"):
                sizes[buffer.data] = size_of(buffer) * stages.get(buffer.data, 1)
                spans.setdefault(buffer.data, [number, number])[1] = number
    ends = {end for _, end in spans.values()}
    alive = (sum(sizes[data] for data, (a, b) in spans.items() if a <= at <= b) for at in ends)
    return max(alive, default=0)


def _outermost(node: Any) -> Iterator[Any]:
    """Yield the statements of a block in order, each loop as one."""
    kind = type(node).__name__
    if kind == "SeqStmt":
        for one in node.seq:
            yield from _outermost(one)
    elif kind == "AttrStmt":
        yield from _outermost(node.body)
    elif kind == "SBlockRealize":
        yield from _outermost(node.block.body)
    else:
        yield node


def _nodes(root: Any) -> list[Any]:
    """Return all statements and expressions below `root`."""
    from tilelang import tvm

    found: list[Any] = []
    tvm.tirx.stmt_functor.post_order_visit(root, found.append)
    return found
