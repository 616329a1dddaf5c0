"""A kernel whose output tells which of the device's blocks did which of the kernel's: the order that was compiled."""

from __future__ import annotations

from typing import Any

import tilelang.language as T

import atune

COLUMNS, ROWS, THREADS = 24, 16, 64
DEVICE_CODE = """
#ifndef ATUNE_TESTS_BLOCK
#define ATUNE_TESTS_BLOCK
__device__ __forceinline__ float device_block() { return ::blockIdx.y * gridDim.x + ::blockIdx.x; }
#endif
"""
ORDERS: list[dict[str, Any]] = [
    {"panel": panel, "order": order, "scale": scale}
    for scale in (1.0, 2.0)
    for panel, order in ((0, "row"), (4, "row"), (4, "column"), (6, "row"))
]


def order(panel: int, order: str, scale: float) -> Any:
    @T.prim_func
    def main(out: T.Tensor((ROWS * COLUMNS * THREADS,), "float32")):
        with T.Kernel(COLUMNS, ROWS, threads=THREADS) as (bx, by):
            T.import_source(DEVICE_CODE)
            T.use_swizzle(panel_size=max(panel, 1), order=order, enable=panel > 0)
            for i in T.Parallel(THREADS):
                block = T.call_extern("float32", "device_block")
                out[(by * COLUMNS + bx) * THREADS + i] = block * T.float32(scale)

    return main


WORKLOAD = atune.Workload(order, ORDERS, name="orders of blocks")
