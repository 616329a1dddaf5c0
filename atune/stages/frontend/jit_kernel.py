"""A tuning's winner → tilelang's own `JITKernel`, in the caller's process."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from atune.model.artifact import Artifact, source_path
from atune.model.candidate import COMPILE_FLAGS, PASS_CONFIGS, Config
from atune.model.device import Target
from atune.model.settings import CPU_FLAGS
from atune.stages.frontend.elaboration import elaborate

HOST_SOURCE = "// The host code of this kernel stands in one library with that of other candidates.\n"


def jit_kernel(
    kernel: Any,
    arguments: Mapping[str, Any],
    config: Config,
    *,
    target: Target,
    artifact: Artifact | None = None,
    out_idx: Sequence[int] | int | None = None,
    pass_configs: Mapping[str, Any] | None = None,
    flags: Sequence[str] | None = None,
    latency_ms: float | None = None,
    reference_ms: float | None = None,
    execution_backend: str | None = None,
    verbose: bool | None = None,
) -> Any:
    """Return `kernel` with `config` as a `tilelang.JITKernel`, with its latency, configuration and reference set.

    Parameters
    ----------
    kernel, arguments
        The kernel function, plain or under `@tilelang.jit`, and the problem's arguments.
    config
        The winner; its reserved names are the pass configuration and the compiler's flags.
    artifact
        Its member of a library that tuning built. It is used as it stands for CUDA kernels that return nothing: loading
        takes about a millisecond. Kernels that return outputs are compiled once more, because tilelang allocates
        outputs inside such a kernel and tuning does not; so are those for the CPU. tilelang's own cache keeps them.
        None compiles.
    out_idx
        Outputs to allocate and return, by position, as `@tilelang.jit` takes it.
    pass_configs, flags
        For every configuration; the configuration's own win.
    latency_ms, reference_ms
        What `JITKernel.latency` and `JITKernel.ref_latency` are to say, in ms.
    execution_backend
        tilelang's; None or ``auto`` for its usual one. With another than ``tvm_ffi`` a CUDA kernel is compiled anew.

    Raises what elaborating and compiling raise.
    """
    function = elaborate(kernel, arguments, config)
    passes = {**(pass_configs or {}), **(config.get(PASS_CONFIGS) or {})}
    own = config.get(COMPILE_FLAGS)
    chosen = list(own) if own is not None else None if flags is None else list(flags)
    attrs = function.attrs or {}
    returns = "tilelang_out_idx" in attrs or (out_idx is not None and out_idx != [] and out_idx != ())
    usual = "cython" if target.kind == "c" else "tvm_ffi"
    backend = usual if execution_backend in (None, "auto") else execution_backend
    if artifact is not None and artifact.target == "cuda" and not returns and backend == usual:
        found = _member(function, artifact, target, passes, chosen)
    else:
        found = _compiled(function, target, backend, out_idx, passes, chosen, verbose)
    if latency_ms is not None:
        found.update_tuner_result(latency_ms, {**config}, reference_ms)
    return found


def _compiled(
    function: Any,
    target: Target,
    backend: str,
    out_idx: Sequence[int] | int | None,
    pass_configs: dict[str, Any],
    flags: list[str] | None,
    verbose: bool | None,
) -> Any:
    import tilelang

    on_cpu = target.kind == "c"
    if on_cpu and flags is None:
        flags = list(CPU_FLAGS)  # as it was tuned: tilelang itself passes none
    # A copy: tilelang keeps one kernel a code, and its latency and configuration are another tuning's too.
    made = tilelang.compile(
        function,
        out_idx=list(out_idx) if isinstance(out_idx, (list, tuple)) else out_idx,
        execution_backend=backend,
        target=target.tvm(),
        verbose=verbose,
        pass_configs=pass_configs or None,
        compile_flags=flags,
    )
    return copy.copy(made)


def _member(
    function: Any, artifact: Artifact, target: Target, pass_configs: dict[str, Any], flags: list[str] | None
) -> Any:
    """Load one member of a library. tilelang itself would take the library's first one for it."""
    from tilelang import tvm
    from tilelang.engine.lower import extrac_params
    from tilelang.jit.adapter.base import CachedTextSource
    from tilelang.jit.kernel import JITKernel

    source = Path(source_path(artifact.path, artifact.symbol))
    kernel = JITKernel.from_database(
        func=function,
        host_kernel_source=CachedTextSource(text=HOST_SOURCE),
        device_kernel_source=CachedTextSource(text=source.read_text() if source.exists() else ""),
        kernel_lib_path=artifact.path,
        params=extrac_params(function),
        target=target.tvm(),
        target_host=None,
        out_idx=None,
        execution_backend="tvm_ffi",
        pass_configs=pass_configs,
        compile_flags=flags,
    )
    kernel.adapter.executable = tvm.runtime.load_module(artifact.path)[artifact.symbol]
    return kernel
