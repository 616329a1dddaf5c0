"""A kernel as a torch operator: under torch.compile, with fake tensors, and in a CUDA graph."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import returning_kernels as kernels
import torch
from libraries import CALLS, EXPRESSION, gpu, measured, numbers, plain
from returning_kernels import N
from torch._subclasses.fake_tensor import FakeTensorMode

from atune.errors import UsageError
from atune.model.artifact import KernelParam, Roles
from atune.stages.loader import register_op

_numbers = itertools.count()


def fresh() -> str:
    """Return a name that no other test has: torch keeps operators until the program ends."""
    return f"atune_tests::op{next(_numbers)}"


OPS = {name: CALLS[name] for name in ("several outputs", "symbolic", "numbers and tensors", "every parameter")}
EXPRESSED = "a size that is an expression"
OPS |= {EXPRESSED: EXPRESSION}


@pytest.mark.parametrize(
    ("make", "name"), [*((measured, name) for name in OPS), (plain, "several outputs"), (plain, EXPRESSED)]
)
def test_torch_finds_nothing_wrong_with_the_operator_of_a_result(make: Callable[..., Any], name: str) -> None:
    """`opcheck` compares the schema with what is written, fake with real outputs, and eager with traced calls."""
    kernel, out_idx, given = OPS[name]
    torch.library.opcheck(make(kernel, out_idx).as_op(fresh()), tuple(given("cpu")))


def test_symbolic_sizes_are_compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fake outputs carry the symbols of the inputs, so that one graph serves every size."""
    op = measured(kernels.twice_as_long, [-1]).as_op(fresh())
    from torch._dynamo.testing import CompileCounter

    counter = CompileCounter()
    around = torch.compile(lambda A: op(A) + 1, backend=counter, fullgraph=True, dynamic=True)
    for n in (3, 5, 8):
        assert torch.equal(around(numbers(n)), torch.cat([numbers(n)] * 2) + 1)
    assert counter.frame_count == 1


def test_a_name_is_one_kernels() -> None:
    one, name = plain(kernels.one, [-1]), fresh()
    op = one.as_op(name)
    assert one.as_op(name) is op
    with pytest.raises(UsageError, match=rf"another kernel has the name {name}: choose another"):
        plain(kernels.symbolic, [-1]).as_op(name)
    with pytest.raises(UsageError, match="torch already has an operator aten::mm"):
        one.as_op("aten::mm")
    with pytest.raises(UsageError, match="with its library, such as \"mylib::gemm\", got 'gemm'"):
        one.as_op("gemm")
    with pytest.raises(UsageError, match="takes no tensor"):
        measured(kernels.from_numbers, [-1]).as_op(fresh())
    assert torch.equal(op(numbers()), numbers() * 2)


@pytest.mark.gpu
@pytest.mark.parametrize("form", ["kernel", "op", "compiled op"])
def test_a_cuda_graph_replays_the_winner(form: str) -> None:
    """It is captured on the current stream, and its replay reads what stands in the inputs then."""
    target = gpu()
    kernel = plain(kernels.one, [-1], target=target)
    op = kernel.as_op(fresh())
    call = {"kernel": kernel, "op": op, "compiled op": torch.compile(op, backend="aot_eager")}[form]
    A = numbers().cuda()
    aside = torch.cuda.Stream()
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        call(A)
    torch.cuda.current_stream().wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        B = call(A)
    for factor in (1, 3):
        A.copy_(numbers() * factor)
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(B.cpu(), numbers() * factor * 2)


@pytest.mark.gpu
def test_torch_finds_nothing_wrong_with_the_operator_on_a_gpu() -> None:
    target = gpu()
    torch.library.opcheck(plain(kernels.one, [-1], target=target).as_op(fresh()), (numbers().cuda(),))
    into = measured(kernels.one, None, target).as_op(fresh())
    torch.library.opcheck(into, (numbers().cuda(), torch.zeros(N, device="cuda")))


def test_an_operator_for_a_gpu_is_traced_without_one() -> None:
    """Fake outputs are on the inputs' device."""

    def launch(A: torch.Tensor) -> torch.Tensor:
        raise AssertionError("nothing is launched")

    params = (KernelParam("float16", ("m", 64)), KernelParam("float32", ("2 * m",)))
    op = register_op(fresh(), launch, params, Roles((1,)), "cuda", ())
    with FakeTensorMode():
        A = torch.empty(3, 64, dtype=torch.float16, device="cuda")
        found = op(A)
        assert (found.shape, found.dtype, found.device) == ((6,), torch.float32, A.device)
