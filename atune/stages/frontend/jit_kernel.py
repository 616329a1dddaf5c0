"""A tuning's winner → a `tilelang.JITKernel`, in the caller's process."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

from atune.model.artifact import Artifact
from atune.model.candidate import COMPILE_FLAGS, PASS_CONFIGS, Config
from atune.model.device import Target
from atune.model.settings import CPU_FLAGS
from atune.stages.frontend.elaboration import elaborate
from atune.stages.frontend.measured import measured_kernel


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
    target_host: str | None = None,
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
        Its member of a library that tuning built, which is called as it stands: nothing is lowered or compiled, and
        outputs are allocated here. None compiles with tilelang, in this process; tilelang's own cache keeps that.
    out_idx
        Outputs to allocate and return, by position, as `@tilelang.jit` takes it.
    pass_configs, flags
        For every configuration; the configuration's own win.
    latency_ms, reference_ms
        What `JITKernel.latency` and `JITKernel.ref_latency` are to say, in ms.
    execution_backend, target_host
        tilelang's, for what is compiled here; None (or ``auto``) for its usual ones. A library has its own.

    With `artifact` the kernel has a method `as_tilelang` more, which returns what tilelang compiles; see
    `atune.stages.frontend.measured.Measured`. Raises what elaborating and compiling raise, and `LoadError`.
    """
    function = elaborate(kernel, arguments, config)
    passes = {**(pass_configs or {}), **(config.get(PASS_CONFIGS) or {})}
    own = config.get(COMPILE_FLAGS)
    chosen = list(own) if own is not None else None if flags is None else list(flags)
    usual = "cython" if target.kind == "c" else "tvm_ffi"
    backend = usual if execution_backend in (None, "auto") else execution_backend
    if target.kind == "c" and chosen is None:
        chosen = list(CPU_FLAGS)  # as it was tuned: tilelang itself passes none

    def compiled() -> Any:
        return _compiled(function, target, backend, target_host, out_idx, passes, chosen, verbose)

    if artifact is None:
        found = compiled()
    else:
        found = measured_kernel(
            function, artifact, target, out_idx=out_idx, pass_configs=passes, flags=chosen, exact=compiled
        )
    if latency_ms is not None:
        found.update_tuner_result(latency_ms, {**config}, reference_ms)
    return found


def _compiled(
    function: Any,
    target: Target,
    backend: str,
    target_host: str | None,
    out_idx: Sequence[int] | int | None,
    pass_configs: dict[str, Any],
    flags: list[str] | None,
    verbose: bool | None,
) -> Any:
    import tilelang

    # A copy: tilelang keeps one kernel a code, and its latency and configuration are another tuning's too.
    made = tilelang.compile(
        function,
        out_idx=list(out_idx) if isinstance(out_idx, (list, tuple)) else out_idx,
        execution_backend=backend,
        target=target.tvm(),
        target_host=target_host,
        verbose=verbose,
        pass_configs=pass_configs or None,
        compile_flags=flags,
    )
    return copy.copy(made)
