"""Copies of tensors, whose inputs just fit into 3 GiB of a device, do so for one candidate, or do not."""

from typing import Any

import tilelang.language as T

import atune

GIB = 1 << 28
"""Elements of float32."""


def kernel(n: int, block: int = 1024, wide: bool = False) -> Any:
    @T.prim_func
    def main(a: T.Tensor((n,), "float32"), out: T.Tensor((n * (16 if wide else 1),), "float32")):
        with T.Kernel(n // block, threads=256) as bx:
            for i in T.Parallel(block):
                out[bx * block + i] = a[bx * block + i]

    return main


def tuned(n: int, wide: tuple[bool, ...] = (False,)) -> atune.Workload:
    space = atune.Space(block=[1024, 2048] if len(wide) == 1 else [1024], wide=list(wide))
    return atune.Workload(kernel, space, arguments={"n": n}, out_idx=[-1])


FITS = tuned(GIB * 3 // 4)
"""0.75 GiB each of input, its copy and output: with CUDA's context and the flushing buffer just too much."""
SOME = tuned(GIB // 4, (False, True))
NONE = tuned(GIB * 2)
