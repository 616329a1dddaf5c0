"""Libraries that wrap tilelang's tuner: they give all tunables at the call, and name them in `do_not_specialize`."""

from __future__ import annotations

from typing import Any

import pytest
import tilelang
import tilelang.language as T
import torch
from drop_in_tuners import BLOCKS, lazy

from atune.compat.tilelang import autotune
from atune.frontends import winners

pytestmark = pytest.mark.timeout(170)
SEEDED = {"do_not_specialize": ["block"]}


@pytest.mark.parametrize("names", [["block"], ("block",), "block", ["block", "factor"], ["block", "no parameter"]])
def test_tunables_that_do_not_specialize_are_tuned_whatever_is_given(names: Any) -> None:
    kernel = lazy(do_not_specialize=names)
    found = kernel(n=64, factor=2.0, block=8)
    assert found.config in BLOCKS and found.latency > 0
    for block in (16, 4, None, "text", object()):
        assert kernel(64, 2.0, block) is found and kernel.compile(n=64, factor=2.0, block=block) is found
    assert kernel(64) is found and len(kernel._tuner_cache) == 1
    assert kernel.tune(128, 2.0, 8).config in BLOCKS and len(kernel._tuner_cache) == 2
    A = torch.randn(64)
    assert torch.equal(found(A), A * 2)


@pytest.mark.filterwarnings("ignore:tunable parameters")
@pytest.mark.parametrize("options", [{}, {"do_not_specialize": ["n"]}, {"do_not_specialize": ["factor"]}])
def test_where_nothing_is_tuned_the_kernel_has_the_values_that_it_was_made_with(options: Any) -> None:
    configs = [{"block": 16, "factor": 2.0}, {"block": 32, "factor": 2.0}]
    kernel = lazy(configs, **options)
    found, A = kernel(64, block=8), torch.randn(64)
    assert (found.config, found.latency, found.ref_latency) == ({"factor": 2.0, "block": 8}, None, None)
    assert kernel.tune(64, block=8).config == found.config and torch.equal(found(A), A * 2)
    assert kernel(64, 3.0, 16).config == {"factor": 3.0, "block": 16} and found.config["block"] == 8


class Scaling:
    """A library's class whose kernels, inputs and expected outputs all come from `self`."""

    def __init__(self, n: int, factor: float) -> None:
        self.n, self.factor, self.weight = n, factor, torch.ones(3)
        self.kernels: list[Any] = []

    def kernel(self) -> Any:
        @tilelang.jit(out_idx=[-1], target="c")
        def kernel(block: int) -> Any:
            @T.prim_func
            def main(A: T.Tensor((self.n,), "float32"), B: T.Tensor((self.n,), "float32")):
                with T.Kernel(T.ceildiv(self.n, block)) as bx:
                    for i in T.serial(block):
                        B[bx * block + i] = A[bx * block + i] * self.factor

            return main

        self.kernels.append(kernel)
        return kernel

    def supply(self, params: Any) -> list[torch.Tensor]:
        return [torch.full((self.n,), float(i + 1)) for i, _ in enumerate(params)]

    def expected(self, A: torch.Tensor) -> torch.Tensor:
        assert A.unique().tolist() == [1.0]
        return A * self.factor

    def tuned(self) -> Any:
        progs = {"supply_prog": self.supply, "ref_prog": self.expected}
        return autotune(configs=BLOCKS, warmup=1, rep=5, **progs, **SEEDED)(self.kernel())(block=8)


def test_kernels_made_in_methods_may_close_over_self(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another object of the library finds what was tuned."""
    A = torch.randn(64)
    for n, factor in ((64, 2.0), (32, 2.0), (64, 3.0)):
        kernel = Scaling(n, factor).tuned()
        assert kernel.config in BLOCKS and kernel.latency > 0 and kernel.ref_latency > 0
        assert torch.equal(kernel(A[:n]), A[:n] * factor)
    monkeypatch.setattr(winners, "tune_work", None)  # as in another program, where nothing is tuned
    again = Scaling(64, 3.0).tuned()
    assert again.config == kernel.config and torch.equal(again(A), A * 3.0)
