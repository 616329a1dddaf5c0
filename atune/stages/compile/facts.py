"""Facts of a kernel from lowering, before any compiler runs: parameters, launch shape, accumulators."""

from __future__ import annotations

import re
from typing import Any

from atune.model.artifact import KernelParam, StaticFacts

_LOCAL_ARRAY = re.compile(
    r"^\s*(float|int|uint|half_t|bfloat16_t|double|signed char|uchar)\s+\w+\[(\d+)\];", re.MULTILINE
)
_BOUNDS = re.compile(r"__launch_bounds__\((\d+)(?:, (\d+))?\)")
_MORE = re.compile(r"warpgroup_reg_alloc<(\d+)>")
_FEWER = re.compile(r"warpgroup_reg_dealloc<(\d+)>")
_REGISTERS = 64 * 1024
"""32-bit registers of a multiprocessor that has setmaxnreg (CUDA C++ Programming Guide, compute capability 9.0)."""
_BLOCKS = ("blockIdx.x", "blockIdx.y", "blockIdx.z")
_BYTES = {"double": 8, "half_t": 2, "bfloat16_t": 2, "signed char": 1, "uchar": 1}


def static_facts(kind: str, device: Any, source: str) -> StaticFacts:
    """Read facts off a lowered device module and its source. `kind`: ``cuda`` or ``c``."""
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
    """Return how many more registers a block requests by ``setmaxnreg`` than it begins with; 0 if it has enough.

    A block begins with the registers that its launch bounds leave each thread, in steps of eight. A producer of 128
    threads releases some, and the consumers wait for the number that they request (PTX ISA, «setmaxnreg»). If the block
    lacks registers, they wait forever.
    """
    bounds, more, fewer = _BOUNDS.findall(source), _MORE.findall(source), _FEWER.findall(source)
    if len(bounds) != 1 or not more or not fewer:
        return 0
    threads, blocks = int(bounds[0][0]), int(bounds[0][1] or 1)
    asked = 128 * int(fewer[0]) + (threads - 128) * int(more[0])
    begins_with = min(_REGISTERS // (threads * max(blocks, 1)) // 8 * 8, 256) * threads
    return max(0, asked - begins_with)


def parameters(function: Any, params: Any) -> tuple[KernelParam, ...]:
    """Return a PrimFunc's parameters. `params`: tilelang's own list of them."""
    buffers = [function.buffer_map.get(variable) for variable in function.params]
    return tuple(_parameter(param, buffer) for param, buffer in zip(params or (), buffers, strict=True))


def _parameter(param: Any, buffer: Any) -> KernelParam:
    scalar = bool(param.is_scalar()) if hasattr(param, "is_scalar") else False
    strides = None if buffer is None or scalar or _is_compact(buffer) else _sizes(buffer.strides)
    return KernelParam(dtype=str(param.dtype), shape=None if scalar else _sizes(param.shape), strides=strides)


def _sizes(sizes: Any) -> tuple[int | str, ...]:
    texts = ["".join(str(d)) for d in sizes]  # msgspec does not encode tvm's own kind of string
    return tuple(int(text) if text.lstrip("-").isdigit() else text for text in texts)


def _is_compact(buffer: Any) -> bool:
    """Tell whether a buffer has the strides of a contiguous tensor."""
    from tilelang import tvm

    analyzer, expected = tvm.arith.Analyzer(), 1
    for size, stride in zip(reversed(list(buffer.shape)), reversed(list(buffer.strides)), strict=False):
        if not analyzer.can_prove_equal(stride, expected):
            return False
        expected = size * expected
    return True


def c_arguments(function: Any, device: Any) -> tuple[int | str, ...]:
    """Map the generated C function's arguments to kernel parameters (positions) and symbolic dimensions (names)."""
    buffers = {
        str(function.buffer_map[v].data.name): i for i, v in enumerate(function.params) if v in function.buffer_map
    }
    scalars = {str(v.name): i for i, v in enumerate(function.params) if v not in function.buffer_map}
    kernels = list(device.functions.values())
    if len(kernels) != 1:
        return ()
    return tuple(buffers.get(str(v.name), scalars.get(str(v.name), str(v.name))) for v in kernels[0].params)
