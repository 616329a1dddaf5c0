"""Tuners of the drop-in for the CPU target, with few samples."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any

import tilelang
from guide_kernels import scaled

from atune.compat.tilelang import AutoTuner, CompileArgs, ProfileArgs, autotune
from atune.compat.tilelang.environment import plan

BLOCKS = [{"block": 16}, {"block": 32}]


def planned(**given: Any) -> Any:
    """Return what these of tilelang's arguments mean; for an H100, unless they say otherwise."""
    records: list[Any] = []
    for record, defaults in ((CompileArgs, {"target": "sm_90a"}), (ProfileArgs, {})):
        own = {field.name for field in dataclasses.fields(record)} & given.keys()
        records.append(record(**{**defaults, **{name: given.pop(name) for name in own}}))
    found = plan(*records, given)
    return SimpleNamespace(**found.pop("run"), **found)


def lazy(configs: Any = BLOCKS, kernel: Any = scaled, **options: Any) -> Any:
    """Return a kernel under the drop-in's decorator, which gives its output."""
    jit = tilelang.jit(out_idx=[-1], target="c", execution_backend="cython")(kernel)
    return autotune(configs=configs, **{"warmup": 1, "rep": 5, **options})(jit)


def cpu_tuner(kernel: Any = scaled, configs: Any = BLOCKS, n: Any = 64, **profile: Any) -> AutoTuner:
    """Return a tuner; of `scaled` for arrays of `n`."""
    made = AutoTuner.from_kernel(kernel, configs=configs).set_compile_args(out_idx=[-1], target="c")
    made.set_profile_args(**{"warmup": 1, "rep": 5, **profile})
    if kernel is scaled:
        made.set_kernel_parameters(((n,), {}), {})
    return made
