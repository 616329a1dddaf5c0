"""A small library of operators of the kind that wraps tilelang's tuner: `Op` tunes the kernels that its methods make.

Everything is for ``target="c"``. No kernel closes over more than numbers and texts, as tilelang's
tuner wants it; what makes inputs and expected outputs are methods.
"""

import itertools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import tilelang
import tilelang.language as T
import torch

from atune.compat.tilelang import autotune

Config = dict[str, Any]


def grid(**axes: Sequence[Any]) -> list[Config]:
    """Return all combinations."""
    return [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]


class Part(NamedTuple):
    """One kernel of an operator: `configs` over its parameters, the first of which is the default.

    `aliases`: the operator's name of a parameter, where that is another than the kernel's.
    """

    jit: Any
    configs: list[Config]
    supply: Callable[[Any], list[torch.Tensor]]
    aliases: dict[str, str]
    reference: Callable[..., Any] | None = None

    def renamed(self, config: Config) -> Config:
        """Return a configuration of the kernel under the operator's names."""
        return {self.aliases.get(name, name): value for name, value in config.items()}

    def own(self, config: Config) -> Config:
        """Return the kernel's part of an operator's configuration, under the kernel's names."""
        return {name: config[self.aliases.get(name, name)] for name in self.configs[0]}


class Op:
    """An operator: its parts, its `config` under the operator's names, and its tuned kernels by the part's name."""

    def __init__(self) -> None:
        self.kernels: dict[str, Any] = {}
        self.config: Config = {}
        self.autotune()

    def parts(self) -> dict[str, Part]:
        """Return the operator's kernels in the order in which they run."""
        raise NotImplementedError

    def inputs(self) -> list[torch.Tensor]:
        """Return new inputs of the operator."""
        raise NotImplementedError

    def supply(self, params: Any) -> list[torch.Tensor]:
        """Return new inputs of the first kernel, as a `supply_prog` does."""
        return self.inputs()

    def expected(self, *inputs: torch.Tensor) -> torch.Tensor:
        """Return the right output."""
        raise NotImplementedError

    def __call__(self, *inputs: torch.Tensor) -> torch.Tensor:
        [kernel] = self.kernels.values()
        return kernel(*inputs)

    def autotune(self) -> None:
        """Tune the parts, one after another."""
        for name, part in self.parts().items():
            self.kernels[name] = self.tune_jit_kernel(part)
            self.config |= part.renamed(self.kernels[name].config)

    def tune_jit_kernel(self, part: Part) -> Any:
        """Return the fastest kernel of a part. The default configuration is given, since tilelang binds the call."""
        seeds = part.configs[0]
        tuned = autotune(
            configs=part.configs,
            warmup=10,
            rep=10,
            supply_prog=part.supply,
            ref_prog=part.reference,
            do_not_specialize=list(seeds),
        )(part.jit)
        return tuned(**seeds)


class Silu(Op):
    """y = x * sigmoid(x)."""

    def __init__(self, n: int) -> None:
        self.n = n
        super().__init__()

    def parts(self) -> dict[str, Part]:
        n = self.n

        @tilelang.jit(out_idx=[-1], target="c")
        def on_cpu(block: int) -> Any:
            @T.prim_func
            def silu(X: T.Tensor((n,), "float32"), Y: T.Tensor((n,), "float32")):
                with T.Kernel(T.ceildiv(n, block)) as bx:
                    for i in T.serial(block):
                        Y[bx * block + i] = X[bx * block + i] / (1.0 + T.exp(-X[bx * block + i]))

            return silu

        return {"silu": Part(on_cpu, grid(block=[16, 64]), self.supply, {})}

    def inputs(self) -> list[torch.Tensor]:
        return [torch.randn(self.n)]

    def expected(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.silu(x)


class SplitKGemm(Op):
    """A @ B + bias in two kernels: products of `splits` slices of K, and their sum with the bias."""

    def __init__(self, m: int, n: int, k: int, splits: int) -> None:
        self.m, self.n, self.k, self.splits = m, n, k, splits
        super().__init__()

    def parts(self) -> dict[str, Part]:
        tiles = grid(block_m=[8, 16], block_n=[16], block_k=[16])
        blocks = grid(block=[16, 32])
        aliases = {name: f"sum_{name}" for name in blocks[0]}
        return {
            "partial": Part(self._partial(), tiles, self.supply_partial, {}, self.partial_sums),
            "combine": Part(self._combine(), blocks, self.supply_combine, aliases),
        }

    def _partial(self) -> Any:
        m, n, k, splits = self.m, self.n, self.k, self.splits

        @tilelang.jit(out_idx=[-1], target="c")
        def partial(block_m: int, block_n: int, block_k: int) -> Any:
            @T.prim_func
            def products(
                A: T.Tensor((m, k), "float32"), B: T.Tensor((k, n), "float32"), P: T.Tensor((splits, m, n), "float32")
            ):
                with T.Kernel(T.ceildiv(n, block_n), T.ceildiv(m, block_m), splits) as (bx, by, bz):
                    tile = T.alloc_local((block_m, block_n), "float32")
                    for i, j in T.grid(block_m, block_n):
                        tile[i, j] = 0.0
                    for ko in T.serial(k // splits // block_k):
                        for i, l, j in T.grid(block_m, block_k, block_n):
                            at = bz * (k // splits) + ko * block_k + l
                            tile[i, j] += A[by * block_m + i, at] * B[at, bx * block_n + j]
                    for i, j in T.grid(block_m, block_n):
                        P[bz, by * block_m + i, bx * block_n + j] = tile[i, j]

            return products

        return partial

    def _combine(self) -> Any:
        size, n, splits = self.m * self.n, self.n, self.splits

        @tilelang.jit(out_idx=[-1], target="c")
        def combine(block: int) -> Any:
            @T.prim_func
            def total(
                P: T.Tensor((splits, size), "float32"), bias: T.Tensor((n,), "float32"), C: T.Tensor((size,), "float32")
            ):
                with T.Kernel(T.ceildiv(size, block)) as bx:
                    for i in T.serial(block):
                        C[bx * block + i] = bias[(bx * block + i) % n]
                        for s in T.serial(splits):
                            C[bx * block + i] += P[s, bx * block + i]

            return total

        return combine

    def supply_partial(self, params: Any) -> list[torch.Tensor]:
        return self.inputs()[:2]

    def supply_combine(self, params: Any) -> list[torch.Tensor]:
        return [torch.randn(self.splits, self.m * self.n), torch.randn(self.n)]

    def inputs(self) -> list[torch.Tensor]:
        return [torch.randn(self.m, self.k), torch.randn(self.k, self.n), torch.randn(self.n)]

    def partial_sums(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        depth = self.k // self.splits
        slices = a.reshape(self.m, self.splits, depth).transpose(0, 1)
        return slices @ b.reshape(self.splits, depth, self.n)

    def expected(self, a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return a @ b + bias

    def __call__(self, a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        products = self.kernels["partial"](a, b)
        return self.kernels["combine"](products.reshape(self.splits, -1), bias).reshape(self.m, self.n)


OPERATORS = {kind.__name__: kind for kind in (Silu, SplitKGemm)}
SIZES: dict[str, dict[str, int]] = {"Silu": {"n": 256}, "SplitKGemm": {"m": 16, "n": 32, "k": 64, "splits": 2}}
"""A problem of each operator."""
