"""Kernels that `exec` makes: their texts share a file name, and each workload keeps its own text."""

from __future__ import annotations

import asyncio
import inspect
from typing import Any

import torch
from decorated import QUICK

import atune
from atune.workload.fingerprint import fingerprint

TEXT = """
import tilelang.language as T


def multiplied(x):
    return x * FACTOR


class Judge:
    def reference(self, A):
        return A * JUDGED

    @staticmethod
    def macro():
        @T.macro
        def put(B, i, value):
            B[i] = value

        return put


MACROS = {"put": Judge.macro}


def scale(n, block=32):
    put = MACROS["put"]()

    @T.prim_func
    def main(A: T.Tensor((n,), "float32"), B: T.Tensor((n,), "float32")):
        with T.Kernel(T.ceildiv(n, block)) as bx:
            for i in T.serial(block):
                put(B, bx * block + i, multiplied(A[bx * block + i]))

    return main
"""
A = torch.arange(1.0, 65.0)


def made(factor: float, by: float | None = None) -> atune.Workload:
    """Return the workload of a kernel that multiplies by `factor`, with a reference that multiplies by `by`."""
    text = TEXT.replace("FACTOR", str(factor)).replace("JUDGED", str(by or factor))
    names: dict[str, Any] = {"__name__": "made"}
    exec(text, names)
    reference = names["Judge"]().reference
    return atune.Workload(names["scale"], {"block": [16, 32]}, arguments={"n": 64}, reference=reference, source=text)


def test_each_workload_keeps_its_own_text() -> None:
    two, three = made(2.0), made(3.0)
    used = [work.kernel.__globals__["multiplied"] for work in (two, three)]
    for work, helper, factor in ((two, used[0], "2.0"), (three, used[1], "3.0")):
        assert inspect.getsource(work.kernel).startswith("def scale(")
        assert inspect.getsource(helper) == f"def multiplied(x):\n    return x * {factor}\n"
        assert inspect.getsource(work.reference.__func__).strip().startswith("def reference")


def test_a_fingerprint_is_of_the_text_alone() -> None:
    first = fingerprint(made(2.0))
    assert len({first, fingerprint(made(3.0)), fingerprint(made(2.0, by=4.0))}) == 3
    assert fingerprint(made(2.0)) == first


def test_a_function_of_another_text_keeps_its_file() -> None:
    exec("def double(A):\n    return A * 2", names := {"__name__": "made"})
    exec(text := TEXT.replace("FACTOR", "2.0"), names)
    atune.Workload(names["scale"], {"block": [16]}, arguments={"n": 64}, reference=names["double"], source=text)
    assert names["double"].__code__.co_filename == "<string>" != names["scale"].__code__.co_filename


def test_texts_that_are_tuned_at_once_keep_their_kernels() -> None:
    async def tuned() -> list[atune.TuneResult]:
        runs = (atune.tune(made(factor), target="c", benchmark=QUICK, progress=False) for factor in (2.0, 3.0))
        return await asyncio.gather(*runs)

    kernels = [result.kernel for result in asyncio.run(tuned())]
    assert torch.equal(kernels[0](A), A * 2) and torch.equal(kernels[1](A), A * 3)
