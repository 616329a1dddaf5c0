"""The winner of a call of a decorated kernel, as a torch operator."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from decorated import TUNING, shift

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
    with pytest.raises(UsageError, match="another kernel has the name"):
        kernel.as_op("atune_decorated::shift", torch.randn(128))


def test_a_plain_call_breaks_the_graph_without_a_warning(tuned: Any) -> None:
    kernel, A = tuned(shift), torch.randn(256)
    kernel(A)
    torch.compiler.reset()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert torch.equal(torch.compile(lambda A: kernel(A * 2) - 1, backend="aot_eager")(A), A * 2 + 1 - 1)


def test_a_call_whose_gradient_would_be_lost_is_refused(tuned: Any) -> None:
    kernel, A = tuned(shift), torch.nn.Parameter(torch.randn(256))
    with pytest.raises(RuntimeError, match=r"argument 0 requires grad.*no_grad"):
        kernel(A)
    with torch.no_grad():
        assert torch.equal(kernel(A), A + 1)
