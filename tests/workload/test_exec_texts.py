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
    """Also if it has the same name in the same line; it then has no source, and is known by its code."""
    known = set[str]()
    for by in ("2.0", "4.0"):
        exec(TEXT.replace("FACTOR", "2.0").replace("JUDGED", by), judge := {"__name__": "made"})
        exec(text := TEXT.replace("FACTOR", "2.0").replace("JUDGED", "3.0"), names := {"__name__": "made"})
        reference = judge["Judge"]().reference
        work = atune.Workload(names["scale"], {"block": [16]}, arguments={"n": 64}, reference=reference, source=text)
        assert reference.__func__.__code__.co_filename == "<string>" != work.kernel.__code__.co_filename
        known.add(fingerprint(work))
    assert len(known) == 2


def test_a_reference_that_comes_later_is_found() -> None:
    text = TEXT.replace("FACTOR", "2.0").replace("JUDGED", "2.0")
    exec(text, names := {"__name__": "made"})
    for reference in (names["multiplied"], names["Judge"]().reference):
        names["added"] = reference  # or any other way in which a function comes into the program later
        work = atune.Workload(names["scale"], {"block": [16]}, arguments={"n": 64}, reference=reference, source=text)
        assert "return" in inspect.getsource(work.reference)


def test_texts_that_are_tuned_at_once_keep_their_kernels() -> None:
    async def tuned() -> list[atune.TuneResult]:
        runs = (atune.tune(made(factor), target="c", benchmark=QUICK, progress=False) for factor in (2.0, 3.0))
        return await asyncio.gather(*runs)

    kernels = [result.kernel for result in asyncio.run(tuned())]
    assert torch.equal(kernels[0](A), A * 2) and torch.equal(kernels[1](A), A * 3)
