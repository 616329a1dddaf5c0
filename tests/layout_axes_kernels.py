"""Kernels whose layouts are axes."""

from __future__ import annotations

from typing import Any

import tilelang.language as T

import atune
from atune import layout


def product(
    M: int, N: int, K: int, policy: str = "Square", copies: str = "compiler", turned: str = "compiler", wide: int = 0
) -> Any:
    """C = A @ B in float16, with 256 threads; C goes out in runs of `wide` elements."""

    @T.prim_func
    def main(A: T.Tensor((M, K), "float16"), B: T.Tensor((K, N), "float16"), C: T.Tensor((M, N), "float16")):
        with T.Kernel(T.ceildiv(N, 128), T.ceildiv(M, 128), threads=256) as (bx, by):
            held_a = T.alloc_shared((128, 64), "float16")
            held_b = T.alloc_shared((64, 128), "float16")
            held_c = T.alloc_fragment((128, 128), "float32")
            layout.swizzle(turned, held_a)
            T.clear(held_c)
            for k in T.Pipelined(T.ceildiv(K, 64), num_stages=2):
                layout.copy(copies, A[by * 128, k * 64], held_a)
                layout.copy(copies, B[k * 64, bx * 128], held_b)
                T.gemm(held_a, held_b, held_c, policy=layout.policy(policy))
            layout.copy("compiler", held_c, C[by * 128, bx * 128], coalesced_width=wide)

    return main


BASE = {"policy": "Square", "copies": "compiler", "turned": "compiler", "wide": 0}
PRODUCT = atune.Workload(
    product,
    atune.Space(
        [
            BASE,
            *({**BASE, "policy": value} for value in layout.policies()[1:]),
            *({**BASE, "copies": value} for value in layout.copies()[1:]),
            *({**BASE, "turned": value} for value in layout.swizzles()[1:]),
            *({**BASE, "wide": value} for value in layout.coalesced_widths(1)[1:]),
        ]
    ),
    arguments={"M": 256, "N": 256, "K": 256},
    name="product",
)


def near(held: Any, threads: int) -> Any:
    """Neighbouring threads hold the same element."""
    copies = threads // held.shape[0]
    return T.Fragment(held.shape, forward_fn=lambda i, copy: (i * copies + copy, 0), replicate=copies)


def far(held: Any, threads: int) -> Any:
    """Neighbouring threads hold neighbouring elements."""
    size = held.shape[0]
    return T.Fragment(held.shape, forward_fn=lambda i, copy: (copy * size + i, 0), replicate=threads // size)


OWN = {"near": near, "far": far}


def four(held: str) -> Any:
    @T.prim_func
    def main(A: T.Tensor((4,), "float32"), B: T.Tensor((4,), "float32")):
        with T.Kernel(1, threads=128):
            a = T.alloc_fragment((4,), "float32")
            layout.hold(held, a, threads=128, **OWN)
            T.copy(A, a)
            T.copy(a, B)

    return main


HELD = atune.Workload(four, atune.Space(held=layout.fragments(*OWN, "missing")), name="held")
