"""A space for the CPU in which 190 of 1,080 configurations fail, half of them in lowering, the others in g++.

python bench/first.py --target c --rows failing --other ../before
"""

from __future__ import annotations

from typing import Any

import tilelang.language as T

import atune

N, CONFIGS, FAIL = 4096, 1080, 190


def doubled(index: int) -> Any:
    """Return a kernel whose block and limit depend on `index`, so that all kernels differ. Some fail."""
    block, limit = 16 << index % 4, float(CONFIGS + index)
    number = (index + 1) * FAIL // CONFIGS
    fails = number > index * FAIL // CONFIGS
    if fails and number % 2:
        raise ValueError(f"no layout for block={block}")

    @T.prim_func
    def main(A: T.Tensor((N,), "float32"), B: T.Tensor((N,), "float32")):
        with T.Kernel(N // block) as bx:
            for i in T.serial(block):
                value = T.if_then_else(A[bx * block + i] < limit, A[bx * block + i] * 2.0, 0.0)
                B[bx * block + i] = T.call_extern("float32", "undeclared", value) if fails else value

    return main


WORKLOAD = atune.Workload(
    doubled, atune.Space(index=list(range(CONFIGS))), reference=lambda A: A * 2, name="failing", out_idx=-1
)
