"""Judge fifty kernels, of which three are bad, or a hundred, or one of a task that is warm."""

from __future__ import annotations

import argparse
import time
from collections import Counter
from itertools import product
from typing import Any

import anyio
import msgspec
import tilelang.language as T

import atune


def scaled(rows: int, columns: int, block: int = 8, threads: int = 128) -> Any:
    @T.prim_func
    def main(A: T.Tensor((rows, columns), "float32"), B: T.Tensor((rows, columns), "float32")):
        with T.Kernel(T.ceildiv(rows, block), threads=threads) as bx:
            for i, j in T.Parallel(block, columns):
                B[bx * block + i, j] = A[bx * block + i, j] * 2.0

    return main


SIZES = {"rows": 1024, "columns": 1024}
TASK = atune.Workload(scaled, {"block": [8]}, arguments=SIZES, reference=lambda A: A * 2, bytes=2.0 * 4 * 1024 * 1024)
TEXT = """import tilelang.language as T

def scaled(rows, columns):
    {before}
    @T.prim_func
    def main(A: T.Tensor((rows, columns), "float32"), B: T.Tensor((rows, columns), "float32")):
        with T.Kernel(T.ceildiv(rows, {block}), threads={threads}) as bx:
            for i, j in T.Parallel({block}, columns):
                B[bx * {block} + i, j] = {value}

    return main
"""
ELEMENT = "A[bx * {block} + i, j]"
VALUES = f"{ELEMENT} * 2.0", f"{ELEMENT} + {ELEMENT}", f"{ELEMENT} * 4.0 * 0.5", f"{ELEMENT} * 3.0 - {ELEMENT}"
SHAPES = product(VALUES, (1, 2, 4, 8, 16), (32, 64, 128, 256, 512))
GOOD = [TEXT.format(before="pass", value=v.format(block=b), block=b, threads=t) for v, b, t in SHAPES]
BAD = [GOOD[0].replace("pass", f) for f in ("import ctypes; ctypes.string_at(0)", "while True: pass")]
BAD.append(GOOD[0].replace("2.0", "3.0"))
COUNTS = {"fifty": 47, "hundred": 100, "one": 1}


async def main(which: str, target: str) -> None:
    texts = GOOD[: COUNTS[which]] + BAD * (which == "fifty")
    settings: Any = {"target": target, "compile": atune.CompileSettings(compile_timeout_s=20)}
    await atune.measure(GOOD[50], TASK, **settings)  # so that the task is warm, and its default was compiled
    began = time.perf_counter()
    results = await atune.measure_many(texts, TASK, **settings)
    print(which, dict(Counter(result.status for result in results)), f"{time.perf_counter() - began:.1f} s")
    print(*[msgspec.json.encode(result).decode()[:2500] for result in (results[0], *results[47:50])], sep="\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("which", choices=COUNTS)
    parser.add_argument("target", nargs="?", default="auto")
    anyio.run(main, *vars(parser.parse_args()).values())
