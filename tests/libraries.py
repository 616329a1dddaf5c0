"""Kernels of libraries that a worker made, for the CPU or a GPU, and calls of them in every way that they return."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import returning_kernels as kernels
import torch
from returning_kernels import N

from atune.frontends.autotuned import with_library
from atune.model.artifact import Artifact, Roles
from atune.model.device import Target
from atune.model.settings import CompileSettings
from atune.stages.jit_kernel import jit_kernel
from atune.stages.loader import Kernel
from atune.workload.workload import Workload

CPU = Target("c")


def gpu() -> Target:
    from atune.frontends.tuner import find_target

    return find_target("cuda", "0")[0]


def config_for(target: Target) -> dict[str, Any]:
    return {} if target == CPU else {"threads": 32}


def library(
    kernel: Any, made: Callable[[Artifact], Any], target: Target = CPU, settings: Any = None, **arguments: Any
) -> Any:
    def called(artifact: Artifact | None) -> Any:
        assert artifact is not None
        return made(artifact)

    work = Workload(kernel, [config_for(target)], arguments=arguments)
    return with_library(work, target, settings or CompileSettings(), called)


def measured(kernel: Any, out_idx: Any, target: Target = CPU, settings: Any = None, **arguments: Any) -> Any:
    """Return what a decorated kernel compiles to."""

    def made(artifact: Artifact) -> Any:
        config = config_for(target)
        return jit_kernel(kernel, arguments, config, target=target, artifact=artifact, out_idx=out_idx)

    return library(kernel, made, target, settings, **arguments)


def plain(kernel: Any, out_idx: Sequence[int], target: Target = CPU) -> Kernel:
    """Return what `TuneResult.kernel` is."""

    def made(artifact: Artifact) -> Kernel:
        outputs = sorted(i % len(artifact.params) for i in out_idx)
        return Kernel(artifact, Roles(outputs=tuple(outputs)))

    found: Kernel = library(kernel, made, target)
    return found


def numbers(n: int = N, dtype: Any = torch.float32, device: str = "cpu") -> torch.Tensor:
    return (torch.arange(n, device=device) % 7).to(dtype)


CALLS: dict[str, tuple[Any, Any, Callable[[str], Sequence[Any]]]] = {
    "one output": (kernels.one, [-1], lambda d: [numbers(device=d)]),
    "by a number": (kernels.one, 1, lambda d: [numbers(device=d)]),
    "several outputs": (kernels.several, [0, 3], lambda d: [numbers(N, torch.int32, d), numbers(N, torch.int32, d)]),
    "in another order": (kernels.several, [-1, 0], lambda d: [numbers(N, torch.int32, d)] * 2),
    "symbolic": (kernels.symbolic, [-1], lambda d: [numbers(12, device=d).view(3, 4)]),
    "numbers and tensors": (kernels.scaled, [2], lambda d: [3, numbers(device=d), 0.5]),
    "every parameter": (kernels.one, None, lambda d: [numbers(device=d), torch.zeros(N, device=d)]),
    "in place": (kernels.in_place, None, lambda d: [numbers(device=d), numbers(device=d)]),
}
EXPRESSION = (kernels.twice_as_long, [-1], lambda d: [numbers(5, device=d)])
"""A size that is an expression: tilelang's cython adapter cannot allocate one."""
