"""Turn winners into `tilelang.JITKernel`s that call the measured library, and these kernels into torch operators.

Importing this module imports tilelang.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from atune.model.artifact import Artifact, Roles, source_path
from atune.model.candidate import COMPILE_FLAGS, PASS_CONFIGS, Config
from atune.model.device import Target
from atune.model.settings import CPU_FLAGS
from atune.stages import tilelang
from atune.stages.frontend import elaborate, frontend_lock, kernel_parameters, roles_of
from atune.stages.loader import calling, checked, load, register_op
from atune.stages.tensors import Outputs


def jit_kernel(
    kernel: Any,
    arguments: Mapping[str, Any],
    config: Config,
    *,
    target: Target,
    artifact: Artifact | None = None,
    out_idx: Sequence[int] | int | None = None,
    roles: Roles | None = None,
    pass_configs: Mapping[str, Any] | None = None,
    flags: Sequence[str] | None = None,
    latency_ms: float | None = None,
    reference_ms: float | None = None,
    execution_backend: str | None = None,
    target_host: str | None = None,
    verbose: bool | None = None,
) -> Any:
    """Return `kernel` with `config` as a `tilelang.JITKernel` with its latency, configuration and reference latency.

    `artifact`: the kernel in a library that tuning built; None to compile with tilelang in this process. `out_idx`: as
    `@tilelang.jit` takes it. `roles`: the roles that the kernel was tuned with; None for the roles that `out_idx`
    implies. If `roles` differ from the implied roles, a call may also pass every parameter, including outputs.
    `pass_configs`, `flags`: defaults for all configurations, which `config` overrides. `execution_backend`,
    `target_host`, `verbose`: tilelang's options for compiling in this process. Raises the errors of elaborating and
    compiling, and `LoadError`.
    """
    function = elaborate(kernel, arguments, config)
    outputs = list(out_idx) if isinstance(out_idx, (list, tuple)) else out_idx
    named = named_outputs(function, outputs)
    roles = roles_of(function, named) if roles is None else roles.handed_out()
    if sorted(named) == sorted(roles.outputs):
        roles = msgspec.structs.replace(roles, outputs=tuple(named))  # in the kernel's own order
    passes = {**(pass_configs or {}), **(config.get(PASS_CONFIGS) or {})}
    chosen = flags if config.get(COMPILE_FLAGS) is None else config[COMPILE_FLAGS]
    usual = "cython" if target.kind == "c" else "tvm_ffi"
    if target.kind == "c" and chosen is None:
        chosen = CPU_FLAGS  # the flags that the kernel was tuned with: tilelang itself passes none
    options = {
        "target": target.tvm(),
        "compile_flags": None if chosen is None else list(chosen),
        "execution_backend": usual if execution_backend in (None, "auto") else execution_backend,
    }

    def compile_by_tilelang() -> Any:
        how = {"target_host": target_host, "verbose": verbose, "pass_configs": passes or None}
        return _tilelang_kernel(function, outputs, roles, target.kind, **how, **options)

    if artifact is None:
        made = compile_by_tilelang()
    else:
        measured = {**options, "execution_backend": usual, "pass_configs": passes}
        made = Measured(function, artifact, roles, named, compile_by_tilelang, measured)
    made.roles = roles
    if config:
        made.update_tuner_result(latency_ms, {**config}, reference_ms)
    return made


class Deferred(tilelang.JITKernel):  # type: ignore[misc]
    """A kernel that tilelang compiles in this process when the kernel is first used or `as_tilelang` is called."""

    _tilelang_compile: Callable[[], Any]
    _compiled: Any = None

    def as_tilelang(self) -> Any:
        """Return the same kernel, compiled by tilelang. The first call compiles the kernel, or loads the kernel from
        tilelang's cache.

        The returned kernel also has the latency, configuration and reference latency. Raises the errors of tilelang.
        """
        with frontend_lock:
            if self._compiled is None:
                self._compiled = self._tilelang_compile()
                if self.config is not None:
                    self._compiled.update_tuner_result(self.latency, self.config, self.ref_latency)
            return self._compiled

    artifact = property(lambda self: self.as_tilelang().artifact)
    adapter = functools.cached_property(lambda self: self.as_tilelang().adapter)
    torch_function = functools.cached_property(lambda self: self.as_tilelang().torch_function)

    def export_library(self, kernel_file: str) -> None:
        self.as_tilelang().export_library(kernel_file)


class Measured(Deferred):
    """A kernel in a measured library, which is described by `artifact`. atune allocates the kernel's outputs.

    Calls, the device source and the profiler need only the library. For the attribute `artifact`, the host source and
    an exported library, `tilelang_compile` is called. `named`: positions of the outputs that are also outputs for
    tilelang. `options`: options of `JITKernel`. Raises `LoadError` if the library is gone.
    """

    def __init__(
        self,
        function: Any,
        artifact: Artifact,
        roles: Roles,
        named: list[int],
        tilelang_compile: Callable[[], Any],
        options: Mapping[str, Any],
    ) -> None:
        super().__init__(func=function, from_database=True, **options)
        self._tilelang_compile, self._kind = tilelang_compile, artifact.target
        outputs = Outputs(artifact.params, roles.outputs, artifact.target, _scalars(function), roles.zero)
        self.adapter = MeasuredAdapter(function, named, artifact, outputs, self.as_tilelang)
        self.torch_function = self.adapter.func

    def as_op(self, name: str) -> Any:
        """Return the kernel as a torch operator: see `register_op`."""
        params, scalars = kernel_parameters(self.prim_func), _scalars(self.prim_func)
        return register_op(name, self.torch_function, params, self.roles, self._kind, self, scalars)

    @property
    def params(self) -> Any:
        return self.adapter.params

    @property
    def kernel_source(self) -> str:
        return str(self.adapter.get_kernel_source(kernel_only=True))


class MeasuredAdapter:
    """Calls a kernel of a measured library. Attributes that this class lacks are taken from tilelang's own adapter.

    On a GPU, tilelang's code in the library checks the arguments. On the CPU, this class checks the arguments.
    """

    def __init__(
        self, function: Any, named: list[int], artifact: Artifact, outputs: Outputs, as_tilelang: Callable[[], Any]
    ) -> None:
        source = Path(source_path(artifact.path, artifact.symbol))
        self.kernel_global_source = source.read_text() if source.exists() else ""
        self.libpath, self._as_tilelang = artifact.path, as_tilelang
        buffers = [(variable, function.buffer_map.get(variable)) for variable in function.params]
        self.params = [
            tilelang.KernelParam.from_var(v) if buffer is None else tilelang.KernelParam.from_buffer(buffer)
            for v, buffer in buffers
        ]
        self.mod, self.result_idx = None, named
        self.func = calling(outputs, checked(artifact) if artifact.target == "c" else load(artifact))

    def __call__(self, *inputs: Any) -> Any:
        return self.func(*inputs)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._as_tilelang().adapter, name)

    def get_kernel_source(self, kernel_only: bool = False) -> str:
        if kernel_only and self.kernel_global_source:
            return self.kernel_global_source
        return str(self._as_tilelang().adapter.get_kernel_source(kernel_only=kernel_only))


def compiled_again(
    function: Any, out_idx: Any, roles: Roles | None, options: Mapping[str, Any], tuned: Mapping[str, Any]
) -> Any:
    """Return the `JITKernel` of a PrimFunc. At the first use, tilelang compiles the kernel or loads it from its cache.

    `roles`: the roles of a tuned kernel's parameters. `options`: options of `tilelang.compile`. `tuned`: the kernel's
    latency, configuration and reference latency.
    """
    given = None if "tilelang_out_idx" in (function.attrs or {}) else out_idx
    known = Roles(tuple(named_outputs(function, given))) if roles is None else roles
    kernel: Any = object.__new__(Deferred)
    kind = str(getattr(options["target"], "kind", options["target"]))
    make = functools.partial(_tilelang_kernel, function, given, known, kind, **options)
    vars(kernel).update(options, **tuned, prim_func=function, roles=known, _tilelang_compile=make)
    return kernel


def _tilelang_kernel(function: Any, out_idx: Any, roles: Roles, kind: str, **options: Any) -> Any:
    """Compile a PrimFunc with tilelang, and return a kernel whose calls make the outputs of `roles`. `kind`: the kind
    of the target. `options`: options of `tilelang.compile`."""
    own = tuple(named_outputs(function, out_idx)) == roles.outputs and not roles.zero
    made = tilelang.compile(
        function if own else function.without_attr("tilelang_out_idx"), out_idx=out_idx if own else None, **options
    )
    # tilelang caches a kernel for each code, so without a copy two tunings would share latency and configuration.
    own_copy = copy.copy(made)
    if not own:
        makes = Outputs(kernel_parameters(function), roles.outputs, kind, _scalars(function), roles.zero)
        own_copy.torch_function = calling(makes, made.torch_function)
    return own_copy


def _scalars(function: Any) -> dict[int, str]:
    """Return the names of a PrimFunc's scalar parameters, by position."""
    return {i: str(v.name) for i, v in enumerate(function.params) if v not in function.buffer_map}


def named_outputs(function: Any, out_idx: Sequence[int] | int | None) -> list[int]:
    """Return the positions of the outputs that a PrimFunc names, or else that `out_idx` names. Raises `ValueError`."""
    given = [out_idx] if isinstance(out_idx, int) else out_idx
    named, n = [int(i) for i in (function.attrs or {}).get("tilelang_out_idx", given) or ()], len(function.params)
    if wrong := [i for i in named if not -n <= i < n]:
        raise ValueError(f"out_idx {wrong[0]} is out of range: the kernel has {n} parameters")
    return [i % n for i in named]
