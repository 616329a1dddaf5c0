"""A tuning's winner → a `tilelang.JITKernel` that calls the library that was measured, in the caller's process."""

from __future__ import annotations

import copy
import functools
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from atune.model.artifact import Artifact, source_path
from atune.model.candidate import COMPILE_FLAGS, PASS_CONFIGS, Config
from atune.model.device import Target
from atune.model.settings import CPU_FLAGS
from atune.stages.frontend.frontend import elaborate, frontend_lock
from atune.stages.measure.loader import LoadError, c_function
from atune.stages.measure.tensors import Outputs


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
    `atune.stages.frontend.jit_kernel.Measured`. Raises what elaborating and compiling raise, and `LoadError`.
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


HOST_SOURCE = "// The host code of this kernel stands in one library with that of other candidates.\n"


class Measured:
    """A kernel from a measured library, with the names of tilelang's `JITKernel`.

    The call, the device's source and the profiler need the library alone. `as_tilelang` provides the rest: `artifact`,
    the host's source, the exported library.
    """

    _exact: Callable[[], Any]
    adapter: Any
    pass_configs: Any

    def as_tilelang(self) -> Any:
        """Return the same kernel compiled by tilelang itself: at the first call, or from its cache.

        Its latency, configuration and reference latency are set, too. Raises what tilelang raises.
        """
        return self._exact()

    @property
    def artifact(self) -> Any:
        return self.as_tilelang().artifact

    @property
    def params(self) -> Any:
        return self.adapter.params

    @property
    def kernel_source(self) -> str:
        return str(self.adapter.get_kernel_source(kernel_only=True))

    @property
    def host_source(self) -> str:
        return str(self.as_tilelang().host_source)

    def export_library(self, kernel_file: str) -> None:
        self.as_tilelang().export_library(kernel_file)


class MeasuredAdapter:
    """The adapter's additions to tilelang's."""

    _exact: Callable[[], Any]
    whole: Any
    """For a kernel that returns outputs, the adapter that is given every parameter."""
    device_kernel_source: str | None

    def get_kernel_source(self, kernel_only: bool = False) -> str:
        if kernel_only and self.device_kernel_source:
            return self.device_kernel_source
        return str(self._exact().adapter.get_kernel_source(kernel_only=kernel_only))

    def get_host_source(self) -> str:
        return str(self._exact().adapter.get_host_source())

    def get_exportable_executable(self) -> Any:
        return self._exact().adapter.get_exportable_executable()


@functools.cache
def _over(own: type, tilelangs: type) -> Any:
    """Return the class of `own` over tilelang's, which is imported only here."""
    return type(f"{own.__name__}{tilelangs.__name__}", (own, tilelangs), {"__module__": __name__})


def measured_kernel(
    function: Any,
    artifact: Artifact,
    target: Target,
    *,
    out_idx: Sequence[int] | int | None,
    pass_configs: dict[str, Any],
    flags: list[str] | None,
    exact: Callable[[], Any],
) -> Any:
    """Return a `JITKernel` of the PrimFunc `function` that calls its member `artifact` of a library.

    Inputs are checked and launched by tilelang's own adapter for the library. Outputs (`out_idx`, or those that the
    function states) are allocated before that, as it would. `exact` makes the kernel for what the library lacks.
    Raises `LoadError` where the library is gone, and `ValueError` for outputs that are not there.
    """
    from tilelang.engine.lower import extrac_params
    from tilelang.jit.abi import prepare_tvm_ffi_callee_allocated_outputs
    from tilelang.jit.kernel import JITKernel

    if not os.path.exists(artifact.path):
        raise LoadError(f"{artifact.path} is gone; tune again to rebuild it")
    asked = list(out_idx) if isinstance(out_idx, (list, tuple)) else out_idx
    _, found = prepare_tvm_ffi_callee_allocated_outputs(function, asked)
    n = len(function.params)
    outputs = [i % n for i in found or ()]
    kernel = _over(Measured, JITKernel)(
        func=function,
        execution_backend="cython" if artifact.target == "c" else "tvm_ffi",
        target=target.tvm(),
        pass_configs=pass_configs,
        from_database=True,
        compile_flags=flags,
    )
    kernel._exact = _once(exact, kernel)
    kernel.adapter = _adapter(function, extrac_params(function), artifact, kernel)
    if outputs:
        kernel.adapter = _returning(function, artifact, outputs, kernel.adapter)
    kernel.torch_function = kernel.adapter.func
    return kernel


def _once(exact: Callable[[], Any], kernel: Any) -> Callable[[], Any]:
    """Return a function that makes the exact kernel once, whoever asks, and gives it what tuning found."""
    made: list[Any] = []

    def get() -> Any:
        with frontend_lock:
            if not made:
                found = exact()
                if kernel.latency is not None:
                    found.update_tuner_result(kernel.latency, kernel.config, kernel.ref_latency)
                made.append(found)
            return made[0]

    return get


def _adapter(function: Any, params: Any, artifact: Artifact, kernel: Any) -> Any:
    """Return tilelang's adapter for a library, of a kernel that is given every parameter."""
    from tilelang.jit.adapter.base import CachedTextSource

    source = Path(source_path(artifact.path, artifact.symbol))
    given: dict[str, Any] = {
        "params": params,
        "result_idx": [],
        "target": kernel.target,
        "func_or_mod": function,
        "host_kernel_source": CachedTextSource(text=HOST_SOURCE),
        "device_kernel_source": CachedTextSource(text=source.read_text() if source.exists() else ""),
        "pass_configs": kernel.pass_configs,
        "compile_flags": kernel.compile_flags,
    }
    try:
        adapter = _on_cpu(artifact, given) if artifact.target == "c" else _tvm_ffi(artifact, given)
    except (OSError, RuntimeError, AttributeError, KeyError) as error:
        raise LoadError(f"{artifact.path} has no kernel {artifact.symbol}: {error}") from error
    adapter._exact = kernel._exact
    return adapter


def _tvm_ffi(artifact: Artifact, given: dict[str, Any]) -> Any:
    from tilelang.jit.adapter import TVMFFIKernelAdapter

    adapter = _over(MeasuredAdapter, TVMFFIKernelAdapter).from_database(**given, kernel_lib_path=artifact.path)
    adapter.executable = adapter.executable[artifact.symbol]  # tilelang took the library's first member
    return adapter


def _on_cpu(artifact: Artifact, given: dict[str, Any]) -> Any:
    """Return tilelang's cython adapter, put together as its `from_database` does, around one member of a library.

    That takes a library with the three functions of tilelang's wrapper, which a library of several kernels has not.
    """
    from tilelang.jit.adapter.cython import adapter as cython
    from tvm import IRModule

    adapter = _over(MeasuredAdapter, cython.CythonKernelAdapter).__new__(
        _over(MeasuredAdapter, cython.CythonKernelAdapter)
    )
    adapter.params, adapter.result_idx, adapter.target = given["params"], [], given["target"]
    adapter.pass_configs, adapter.verbose = given["pass_configs"], False
    adapter.device_kernel_source = adapter.kernel_global_source = given["device_kernel_source"].text
    function = given["func_or_mod"]
    adapter.ir_module = IRModule({function.attrs["global_symbol"]: function})
    names = {
        "dynamic_symbolic_map": "_process_dynamic_symbolic",
        "dynamic_symbolic_sources": "_process_dynamic_symbolic_sources",
        "buffer_dtype_map": "_process_buffer_dtype",
        "buffer_device_map": "_process_buffer_device",
        "ptr_map": "_process_ptr_map",
    }
    if not hasattr(adapter, names["dynamic_symbolic_sources"]):  # tilelang 0.1.14 reads each from one tensor
        del names["dynamic_symbolic_sources"]
    for name, process in names.items():
        setattr(adapter, name, getattr(adapter, process)())
    found = adapter._process_static_buffer_infos()
    adapter.static_shape_map, adapter.static_strides_map, adapter.static_contiguous_list = found
    adapter.lib_generator = cython.LibraryGenerator(adapter.target)
    adapter.lib_generator.libpath = artifact.path
    adapter.lib = _Member(artifact, list(map(str, adapter.dynamic_symbolic_map)))
    providers: tuple[Any, ...] = getattr(cython, "_device_providers", tuple)()  # 0.1.14 has none
    wrapper = cython.CythonKernelWrapper([], adapter.params, adapter.lib, *providers)
    for name in (*names, "static_shape_map", "static_strides_map", "static_contiguous_list"):
        getattr(wrapper, f"set_{name}")(getattr(adapter, name))
    adapter.cython_wrapper = wrapper
    adapter._post_init()
    return adapter


class _Member:
    """One member of a library for the CPU, as tilelang's cython adapter calls a library.

    It is called with each parameter, the symbolic dimensions, and a stream; `dimensions` are their names.
    """

    def __init__(self, artifact: Artifact, dimensions: Sequence[str]) -> None:
        n = len(artifact.params)
        self._function, self._symbol = c_function(artifact), artifact.symbol
        self._order = [what if isinstance(what, int) else n + dimensions.index(what) for what in artifact.calls]
        self._status = 0

    def call(self, *values: Any) -> int:
        self._status = int(self._function(*[values[i] for i in self._order]))
        return self._status

    def get_last_error(self) -> bytes:
        return f"{self._symbol} returned {self._status}".encode()


def _returning(function: Any, artifact: Artifact, out_idx: list[int], whole: Any) -> Any:
    """Return an adapter for the inputs alone: it allocates the outputs, has `whole` launch the kernel, returns them.

    `whole`, the adapter for every parameter, stays as it is: tilelang's own reads its outputs off itself at each call.
    """
    scalars = {i: str(v.name) for i, v in enumerate(function.params) if v not in function.buffer_map}
    outputs = Outputs(artifact.params, out_idx, artifact.target, scalars)
    expected = len(artifact.params) - len(out_idx)

    def call(*inputs: Any, **options: Any) -> Any:
        if len(inputs) != expected:
            raise ValueError(f"Kernel expected {expected} inputs, but {len(inputs)} are provided.")
        arguments = outputs.among(inputs)
        whole.func(*arguments, **options)
        return arguments[out_idx[0]] if len(out_idx) == 1 else [arguments[i] for i in out_idx]

    adapter = copy.copy(whole)
    adapter.whole, adapter.result_idx, adapter.func = whole, out_idx, call
    return adapter
