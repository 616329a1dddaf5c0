"""Translation of tilelang's arguments to atune's settings, with warnings for arguments without a counterpart."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from atune.compat.tilelang import environment
from atune.compat.tilelang.arguments import CompileArgs, ProfileArgs, RunArgs
from atune.compat.tilelang.environment import ArgumentError, warn_once
from atune.model.device import Target, parse_target
from atune.model.settings import BenchmarkSettings, CompileSettings

NO_DEADLINE_S = 7 * 24 * 3600.0
RUN_TIMEOUT_S = 180.0


@dataclass(frozen=True)
class Plan:
    """Where to run, and options of `atune.tune`."""

    target: str
    devices: str | list[str]
    pipeline: bool
    progress: bool
    compile: CompileSettings
    benchmark: BenchmarkSettings

    @property
    def run(self) -> dict[str, Any]:
        """The options of `atune.tune`."""
        return {name: value for name, value in vars(self).items() if name not in ("target", "devices")}


def jit_arguments(args: CompileArgs) -> dict[str, Any]:
    """Return the arguments of atune's `jit_kernel`, for winners."""
    return {
        "out_idx": args.out_idx,
        "pass_configs": args.pass_configs,
        "execution_backend": backend_of(args.execution_backend, resolved_target(args.target)),
        "target_host": host_of(args.target_host),
        "verbose": args.verbose,
    }


def plan(compile_args: CompileArgs, profile: ProfileArgs | None, run: RunArgs) -> Plan:
    """Return atune's options. Raises `ArgumentError` and `TargetError`. Warns of arguments without a meaning here.

    Warm-up, repeats and deadline come from `run`, otherwise from the profile, otherwise from tilelang's defaults.
    """
    known = profile or ProfileArgs(timeout=RUN_TIMEOUT_S)
    timeout = known.timeout if run.timeout is None else run.timeout
    if run.early_stop_factor is not None:
        if run.early_stop_factor < 1.0:
            raise ArgumentError(f"early_stop_factor must be >= 1.0, got {run.early_stop_factor}")
        if run.early_stop_factor != 2.0:  # tilelang's default
            warn_once("early_stop_factor", "has no effect: a candidate 1.5 times slower than the best gets 3 samples")
    target = resolved_target(compile_args.target)
    if (backend := backend_of(compile_args.execution_backend, target)) != "auto":
        warn_once(f"execution_backend={backend!r}", "counts for as_tilelang(): tvm_ffi builds and calls the candidates")
    return Plan(
        target=_text(target),
        devices=_devices(target, run),
        pipeline=run.use_pipeline is not False,
        progress=compile_args.verbose or sys.stderr.isatty(),
        compile=CompileSettings(
            workers=environment.workers(),
            group_size=_group_size(run),
            compile_timeout_s=environment.compile_timeout_s(),
            flags=compile_args.compile_flags or None,
            target_host=host_of(compile_args.target_host),
            store=environment.storing(),
        ),
        benchmark=BenchmarkSettings(
            n_warmup=known.warmup if run.warmup is None else run.warmup,
            n_repeat=known.rep if run.rep is None else run.rep,
            benchmark_timeout_s=timeout if timeout > 0 and math.isfinite(timeout) else NO_DEADLINE_S,
            check=not known.skip_check,
            cache_inputs=known.cache_input_tensors is not False,
            adaptive=run.early_stop is not False,
            method="auto" if known.backend == "event" else known.backend,
        ),
    )


def resolved_target(target: Any) -> Target:
    """Return the target. ``auto`` is CUDA if tilelang sees a GPU, otherwise the CPU. Raises `TargetError`."""
    kind = getattr(getattr(target, "kind", None), "name", None)
    if kind is not None and not isinstance(target, Target):  # a TVM target
        target = {"kind": str(kind), "arch": str(target.attrs.get("arch", ""))} if kind == "cuda" else str(kind)
    found = parse_target(target)
    if found is None:
        from tilelang.utils.device import IS_CUDA

        found = Target("cuda") if IS_CUDA else Target("c")
    return found


def _text(target: Target) -> str:
    return target.arch or target.kind


def _devices(target: Target, run: RunArgs) -> str | list[str]:
    if run.benchmark_devices is not None and not run.benchmark_multi_gpu:
        warn_once("benchmark_devices", "has an effect only with benchmark_multi_gpu=True, as with tilelang's tuner")
    if target.kind != "cuda":
        if run.benchmark_multi_gpu:
            warn_once("benchmark_multi_gpu", f"has no effect for target {target.kind}: there is one device")
        return "all"
    if run.benchmark_multi_gpu:
        return [str(int(device)) for device in dict.fromkeys(run.benchmark_devices or ())] or "all"
    torch = sys.modules.get("torch")
    current = torch.cuda.current_device() if torch is not None and torch.cuda.is_initialized() else 0
    return [str(current)]


def _group_size(run: RunArgs) -> int | None:
    size = run.group_compile_size
    if size is not None and (isinstance(size, bool) or not isinstance(size, int) or size < 1):
        raise ArgumentError(f"group_compile_size must be a whole number above zero, got {size!r}")
    if run.enable_grouped_compile is None:
        if size is not None:
            warn_once("group_compile_size", "has an effect only with enable_grouped_compile=True; the engine decides")
        return None
    return (size or 2) if run.enable_grouped_compile else 1


def backend_of(name: str, target: Target) -> Any:
    """Return the backend for what tilelang compiles itself. If the target lacks it, warn and return ``auto``.

    Candidates have the target's usual backend.
    """
    usual = "cython" if target.kind == "c" else "tvm_ffi"
    if name in ("auto", usual):
        return "auto"
    if target.kind == "cuda" and name in ("cython", "nvrtc"):
        return name
    warn_once(f"execution_backend={name!r}", f"does not support target {target.kind}: {usual} is used")
    return "auto"


def host_of(target_host: Any) -> str | None:
    """Return the target of host code as text, for the engine. tilelang also takes a dict or a TVM target."""
    if target_host is None:
        return None
    return json.dumps(target_host) if isinstance(target_host, Mapping) else str(target_host)
