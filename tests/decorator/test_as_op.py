"""The winner of a call of a decorated kernel, as a torch operator."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from decorated import TUNING, add, shift

import atune
from atune.errors import UsageError


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Any]:
    """Decorate with a small tuning and a result cache of these tests' own."""
    cache = tmp_path_factory.mktemp("results")

    def decorate(kernel: Any, **options: Any) -> Any:
        return atune.autotune(kernel, **{"space": {"block": [16, 64]}, "tuning": TUNING, "cache": cache, **options})

    return decorate


def test_an_eager_kernel_is_the_operator_of_the_calls_winner(tuned: Any) -> None:
    """It takes the call's tensors and no others; asked again it is the same one."""
    kernel = tuned(shift)
    A = torch.randn(256)
    op = kernel.as_op("atune_decorated::shift", A)
    assert kernel.as_op("atune_decorated::shift", n=256) is op
    torch.library.opcheck(op, (A,))
    around = torch.compile(lambda A: torch.ops.atune_decorated.shift(A * 2) - 1, backend="aot_eager", fullgraph=True)
    assert torch.equal(around(A), A * 2 + 1 - 1)
    with pytest.raises(UsageError, match="another kernel's"):
        kernel.as_op("atune_decorated::shift", torch.randn(128))


def test_a_plain_call_breaks_the_graph_without_a_warning(tuned: Any) -> None:
    kernel, A = tuned(shift), torch.randn(256)
    kernel(A)
    torch.compiler.reset()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert torch.equal(torch.compile(lambda A: kernel(A * 2) - 1, backend="aot_eager")(A), A * 2 + 1 - 1)


def test_a_kernel_that_writes_into_what_it_gets_declares_it(tuned: Any) -> None:
    kernel = tuned(add)
    A, B, C = torch.randn(8, 16), torch.randn(8, 16), torch.zeros(8, 16)
    op = kernel.as_op("atune_decorated::add", A, B, C)
    assert str(op._opoverload._schema) == "atune_decorated::add(Tensor p0, Tensor p1, Tensor(a2!) p2) -> ()"
    torch.compile(lambda *given: op(*given), backend="aot_eager", fullgraph=True)(A, B, C)
    assert torch.equal(C, A + B)
    torch.library.opcheck(op, (A, B, C))


def test_a_call_whose_gradient_would_be_lost_is_refused(tuned: Any) -> None:
    kernel, A = tuned(shift), torch.nn.Parameter(torch.randn(256))
    with pytest.raises(RuntimeError, match=r"argument 0 requires grad.*no_grad"):
        kernel(A)
    with torch.no_grad():
        assert torch.equal(kernel(A), A + 1)


def test_a_result_says_what_its_winner_writes(tmp_path: Path) -> None:
    """What measuring saw is declared, also by a result that is read from a journal."""
    benchmark = atune.BenchmarkSettings(check=False, **{**TUNING, "n_final": 0})
    work = atune.Workload(add_into, [{"block": 16}], out_idx=[-1], name="add_into")
    result = atune.run(work, target="c", benchmark=benchmark, journal=tmp_path / "j.jsonl")
    found = atune.replay(tmp_path / "j.jsonl")
    for i, each in enumerate((result, found)):
        op = each.kernel.as_op(f"atune_decorated::add_into_{i}")
        assert str(op._opoverload._schema).endswith("(Tensor(a0!) p0, Tensor p1) -> Tensor")
        A, B = torch.ones(64), torch.full((64,), 2.0)
        assert torch.equal(op(A, B), torch.full((64,), 6.0)) and torch.equal(A, torch.full((64,), 3.0))


def add_into(block: int) -> Any:
    """A += B, and C = A * 2."""
    import tilelang.language as T

    @T.prim_func
    def main(A: T.Tensor((64,), "float32"), B: T.Tensor((64,), "float32"), C: T.Tensor((64,), "float32")):
        with T.Kernel(T.ceildiv(64, block)) as bx:
            for i in T.serial(block):
                A[bx * block + i] = A[bx * block + i] + B[bx * block + i]
                C[bx * block + i] = A[bx * block + i] * T.float32(2.0)

    return main
