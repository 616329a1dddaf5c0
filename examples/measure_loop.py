"""Improve a kernel by proposals that nobody trusts: judge each round's programs, and keep the fastest that passed.

python examples/measure_loop.py
"""

from __future__ import annotations

import random
import re

import anyio
from gemm_cpu import WORKLOAD

import atune

FIRST = """import tilelang.language as T

TILE_M, TILE_N, TILE_K = 4, 4, 4


def gemm_cpu(M, N, K):
    @T.prim_func
    def main(A: T.Tensor((M, K), "float32"), B: T.Tensor((K, N), "float32"), C: T.Tensor((M, N), "float32")):
        with T.Kernel(T.ceildiv(N, TILE_N), T.ceildiv(M, TILE_M)) as (bx, by):
            tile = T.alloc_local((TILE_M, TILE_N), "float32")
            for i, j in T.grid(TILE_M, TILE_N):
                tile[i, j] = 0.0
            for ko in T.serial(T.ceildiv(K, TILE_K)):
                for i, j, k in T.grid(TILE_M, TILE_N, TILE_K):
                    tile[i, j] += A[by * TILE_M + i, ko * TILE_K + k] * B[ko * TILE_K + k, bx * TILE_N + j]
            for i, j in T.grid(TILE_M, TILE_N):
                C[by * TILE_M + i, bx * TILE_N + j] = tile[i, j]

    return main
"""


def proposals(text: str, draw: random.Random) -> list[str]:
    """Return variants of a program. A language model would write them; this function edits the text by chance."""
    tiles = [", ".join(str(draw.choice([4, 16, 64])) for _ in range(3)) for _ in range(2)]
    swapped = text.replace("i, j, k in T.grid(TILE_M, TILE_N, TILE_K)", "i, k, j in T.grid(TILE_M, TILE_K, TILE_N)")
    wrong = text.replace("= 0.0", "= 1.0")
    return [swapped, wrong, *(re.sub(r"(TILE_K = ).*", rf"\g<1>{sizes}", swapped) for sizes in tiles)]


async def main() -> None:
    best, draw = FIRST, random.Random(0)
    for number in range(2):
        texts = [best, *proposals(best, draw)]
        results = await atune.measure_many(texts, WORKLOAD, target="c")
        for result in results:
            print(number, result.status, result.latency_ms and f"{result.latency_ms[1]:.3f} ms", result.reason[:80])
        passed = [(each.latency_ms, text) for each, text in zip(results, texts, strict=True) if each.latency_ms]
        best = min(passed, key=lambda one: one[0][1])[1]
    print(best)


if __name__ == "__main__":
    anyio.run(main)
