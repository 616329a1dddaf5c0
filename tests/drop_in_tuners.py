"""Tuners of the drop-in with few samples, for the CPU target or a GPU, and what they ask of the engine."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import tilelang
import torch
from guide_kernels import scaled
from tilelang.autotuner import param

import atune
from atune.compat.tilelang import AutoTuner, CompileArgs, ProfileArgs, autotune
from atune.compat.tilelang.autotuner import TilelangKernel
from atune.compat.tilelang.environment import translated

BLOCKS = [{"block": 16}, {"block": 32}]
ON_CPU = CompileArgs(target="c", execution_backend="cython")


def lazy(configs: Any = BLOCKS, kernel: Any = scaled, **options: Any) -> Any:
    """Return a kernel under the drop-in's decorator, which gives its output."""
    return Place("c").decorated(kernel, configs, **options)


def cpu_tuner(kernel: Any = scaled, configs: Any = BLOCKS, n: Any = 64, **profile: Any) -> AutoTuner:
    """Return a tuner; of `scaled` for arrays of `n`."""
    made = Place("c").tuner(kernel, configs, **profile)
    if kernel is scaled:
        made.set_kernel_parameters(((n,), {}), {})
    return made


QUICK = {"warmup": 1, "rep": 5, "timeout": 60}


class Place:
    """Where a test runs: the CPU, or a GPU."""

    def __init__(self, target: str) -> None:
        self.target = target
        self.device = "cpu" if target == "c" else "cuda"
        self.backend = "cython" if target == "c" else "tvm_ffi"
        self.dtype = "float32" if target == "c" else "float16"
        self.problem = {"gpu": target == "cuda", "dtype": self.dtype}
        self.threads = None if target == "c" else 32

    def matrix(self, size: int) -> torch.Tensor:
        return torch.randn(size, size, device=self.device).to(getattr(torch, self.dtype))

    def decorated(self, kernel: Any, configs: Any, **options: Any) -> Any:
        jit = tilelang.jit(out_idx=[-1], target=self.target, execution_backend=self.backend)
        return autotune(configs=configs, **{**QUICK, **options})(jit(kernel))

    def tuner(self, kernel: Any, configs: Any, out_idx: Any = -1, arguments: Any = None, **profile: Any) -> AutoTuner:
        made = AutoTuner.from_kernel(kernel, configs=configs).set_compile_args(out_idx=out_idx, target=self.target)
        made.set_profile_args(**{**QUICK, **profile})
        made.set_kernel_parameters(((), {} if arguments is None else arguments), {})
        return made

    def scaled(self, configs: Any = ({"block": 16}, {"block": 32}), n: Any = 256, **options: Any) -> AutoTuner:
        return self.tuner(scaled, list(configs), arguments={"n": n, "threads": self.threads}, **options)


def workload_of(tuner: AutoTuner) -> atune.Workload:
    return tuner.call_of(TilelangKernel(tuner.fn), {}).tuned.workload


def close(found: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(found.float(), expected.float(), rtol=1e-2, atol=1e-2)


def planned(**given: Any) -> Any:
    """Return what these of tilelang's arguments mean; for an H100, unless they say otherwise."""
    records: list[Any] = []
    for record, defaults in ((CompileArgs, {"target": "sm_90a"}), (ProfileArgs, {})):
        own = {field.name for field in dataclasses.fields(record)} & given.keys()
        records.append(record(**{**defaults, **{name: given.pop(name) for name in own}}))
    found = translated(*records, given)
    plan = found["plan"]
    return SimpleNamespace(**found, **vars(plan.settings), devices=plan.devices, progress=plan.progress)


def key(n: int = 64, out_idx: int = -1, **profile: Any) -> str:
    """Return the key of the result that such a tuner finds."""
    made: Any = cpu_tuner(n=n, **profile)
    made.compile_args = dataclasses.replace(made.compile_args, out_idx=[out_idx])
    return str(made.call_of(TilelangKernel(made.fn), {}).tuned.work.key.text)


def saved_by_tilelang(folder: Path) -> None:
    """Have tilelang save a result in `folder`: `scaled` by blocks of 16, in 0.5 ms, and its reference in 1.5 ms."""
    kernel = tilelang.compile(scaled(64), out_idx=[-1], target="c", execution_backend="cython")
    found = param.AutotuneResult(0.5, {"block": 16}, 1.5, kernel.get_kernel_source(), kernel.prim_func, kernel)
    found.save_to_disk(folder)
