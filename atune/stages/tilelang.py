"""The contract with tilelang: the names of tilelang that atune uses, their purpose, and the parameters of calls.

No other module of atune imports tilelang. This module imports tilelang when a name such as ``tilelang.tvm`` is first
used. If atune was not tested with the installed tilelang, this module then checks the contract. The only imports from
atune are `model` and `errors`.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import inspect
import os
import re
import sys
from collections.abc import Iterable
from typing import Any

from atune.errors import UsageError
from atune.model.requirements import REQUIRES, is_tested

NAMES: dict[str, tuple[str, ...]] = {
    "tilelang:": (
        "its public interface: compiling for `as_tilelang`, folders, switches, and layouts in kernels",
        "__version__", "jit(func, *, out_idx, target, pass_configs)",
        "compile(func, *, out_idx, execution_backend, target, target_host, verbose, pass_configs, compile_flags)",
        "JITKernel(*, func, execution_backend, from_database, target, pass_configs, compile_flags)",
        "JITKernel.update_tuner_result(self, latency, config, ref_latency)", "JITKernel.prim_func",
        "JITKernel.adapter", "JITKernel.torch_function", "env.CUDA_HOME", "env.TILELANG_TEMPLATE_PATH",
        "env.CUTLASS_INCLUDE_DIR", "env.is_cache_enabled()", "env.is_autotune_cache_disabled()",
        "env.get_default_target()", "env.get_default_execution_backend()", "env.get_default_verbose()",
        "env.get_compile_timeout_seconds()", "env.TILELANG_AUTO_TUNING_CPU_COUNTS",
        "env.TILELANG_AUTO_TUNING_CPU_UTILITIES", "env.TILELANG_AUTO_TUNING_MAX_CPU_COUNT",
        "language.dynamic(name)", "language.annotate_layout(layout_map)", "language.Fragment",
        "language.Parallel", "layout.make_fully_replicated_layout_fragment",
    ),
    "tilelang:tvm": (
        "the trees of kernels, and libraries",
        "get_global_func(name, *, allow_missing)", "register_global_func(func_name, f, *, override)", "DataType(value)",
        "IRModule(functions, *, attrs)", "tirx.Var(name, dtype)", "tirx.BufferStore", "tirx.BufferLoad", "tirx.Call",
        "tirx.PrimFunc", "tirx.PrimFunc.with_body(self, new_body)", "tirx.AttrStmt(node, attr_key, value, body)",
        "tirx.SBlock(iter_vars, reads, writes, name_hint, body, init, alloc_buffers, match_buffers, annotations)",
        "tirx.analysis.undefined_vars(node)", "tirx.expr.NotEqualOp.__bool__(self)", "tirx.IntImm(dtype, value)",
        "tirx.stmt_functor.ir_transform(stmt, preorder, postorder, only_enable)", "tirx.expr.EqualOp.__bool__(self)",
        "tirx.stmt_functor.post_order_visit(stmt, fvisit)", "tirx.stmt_functor.pre_order_visit(stmt, fvisit)",
        "ir.save_json(node)", "ir.structural_hash(node, *, map_free_vars)", "ir.Op.list_op_names()",
        "arith.Analyzer()", "target.Target(target)", "target.Target.current(*, allow_none)",
        "transform.PassContext(*, opt_level, config, instruments)", "transform.PassContext.current()",
        "instrument.pass_instrument(pi_cls)", "runtime.Executable(mod)",
        "runtime.Executable.export_library(self, file_name, *, fcompile, fpack_imports, workspace_dir)",
    ),
    "tilelang.backend.module:create_backend_context(target, target_host, execution_backend)": ("passes and printers",),
    "tilelang.engine.lower:lower_to_host_device_ir(func_or_mod, context)": ("lowers a kernel to its two halves",),
    "tilelang.engine.lower:host_codegen(host_mod, context)": ("prints the host's half",),
    "tilelang.engine.lower:device_codegen_without_compile(device_mod, context)": ("prints the device's half",),
    "tilelang.engine.lower:device_codegen(device_mod, context)": ("loads machine code into a library's device half",),
    "tilelang.transform.pass_config:normalize_pass_configs(pass_configs)": ("completes a pass configuration",),
    "tilelang.engine:KernelParam(dtype, shape)": (
        "describes parameters, for `supply_prog` and for loaded libraries", "from_buffer(buffer)", "from_var(var)",
    ),
    "tilelang.jit:JITImpl": (
        "kernels under `@tilelang.jit`",
        "get_tir", "initialize_jit_mode", "func", "signature", "out_idx", "pass_configs", "target",
    ),
    "tilelang.language.eager:builder": (
        "the function under `@tilelang.jit`, and the sizes of an eager kernel by name",
        "JITFunc.orig_func", "JITFunc.tensor_args", "JITFunc.parse_args", "JITFunc.p1_cache", "TirTemplate.matcher",
    ),
    "tilelang.autotuner:param": (
        "the stored results of `AutoTuner`, and its records",
        "CompileArgs(out_idx, execution_backend, target, target_host, verbose, pass_configs)",
        "ProfileArgs(*, warmup, rep, timeout, supply_type, ref_prog, supply_prog, rtol, atol, max_mismatched_ratio, "
        "skip_check, manual_check_prog, cache_input_tensors, backend)",
        "AutotuneResult(latency, config, ref_latency, libcode, func, kernel)",
        "AutotuneResult.save_to_disk(self, path, verbose)", "AutotuneResult.load_from_disk(path, compile_args)",
    ),
    "tilelang.autotuner:tuner": (
        "the tuner's signatures, and the parts that the drop-in keeps", "autotune(*, configs)",
        "AutoTuner(fn, configs)", "AutoTuner.from_kernel(kernel, configs)", "AutoTuner.set_compile_args",
        "AutoTuner.set_profile_args", "AutoTuner.set_kernel_parameters(self, k_parameters, f_parameters)",
        "AutoTuner.run", "_normalize_value(value, *, sort_dict_items)",
    ),
    "tilelang.autotuner:capture": (
        "inputs for tuning", "get_autotune_inputs()", "set_autotune_inputs",
    ),
}  # fmt: skip
"""Purpose and uses of each ``module:attribute``. Brackets hold the parameters that atune passes: first the parameters
by position, then, after ``*``, the parameters by name."""

NVCC, PACK_IMPORTS, LOAD_JSON = FUNCTIONS = (
    "tilelang_callback_cuda_compile", "runtime.ModulePackImportsToTensor", "node.LoadJSON",
)  # fmt: skip
"""Names of registered functions that compile device code, pack device code into a library, and load IR from JSON."""
LOAD_MODULE, KEEP_MODULE = "ffi.ModuleLoadFromFile", "ffi.ModuleGlobalsAdd"
"""Names of registered functions that load a library as a module, and that keep a module until the program ends."""
L2_WINDOW = "__tvm_cuda_stream_set_access_policy_window", "__tvm_cuda_stream_reset_access_policy_window"
"""Names of registered functions that host code calls before and after a launch with `T.annotate_l2_hit_ratio`."""
OPERATIONS = ("tl.region", "tl.access_ptr", "tirx.tvm_access_ptr", "tirx.address_of")
"""Operations that show which memory a kernel reads and writes."""

REPLACED = {
    "autotune": ("tilelang", "tilelang.autotuner", "tilelang.autotuner.tuner"),
    "AutoTuner": ("tilelang.autotuner", "tilelang.autotuner.tuner"),
    "AutoTuneImpl": ("tilelang.autotuner.tuner",),
    "AutotuneResult": ("tilelang.autotuner.param", "tilelang.autotuner.tuner"),
}
"""Names that `atune.compat.tilelang.install` replaces, and the modules that contain each name. Only the drop-in needs
them."""

_PLACES = {re.split("[.:]", place)[-1]: place for place in (use.partition("(")[0] for use in NAMES)}
_PLACES |= {name: f"tilelang:{name}" for name in (re.split(r"\W", part)[0] for part in NAMES["tilelang:"][1:])}


def __getattr__(name: str) -> Any:
    """Look up a name of `NAMES` in tilelang. Raises the same `UsageError` as `untested`."""
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    untested()
    module, _, attribute = _PLACES[name].partition(":")
    return getattr(importlib.import_module(module), attribute)


@functools.cache
def untested() -> str:
    """Return a warning if atune was not tested with the installed tilelang, or else an empty text.

    If the installed tilelang breaks the contract, raises a `UsageError` that lists the names that are gone or changed.
    """
    version, tested = str(importlib.import_module("tilelang").__version__), REQUIRES["tilelang"]
    if is_tested("tilelang", version):
        return ""
    if moved := breaches():
        raise UsageError(
            f"atune does not work with tilelang {version}: {'; '.join(moved)}. "
            f"Install a tested version: pip install 'tilelang{tested}'"
        )
    return f"atune was not tested with tilelang {version}, only with {tested}; all the names that atune uses are there"


def breaches() -> list[str]:
    """Describe each way in which the installed tilelang breaks the contract; empty if it keeps the contract."""
    owners = [(use.partition("(")[0], parts) for use, (_, *parts) in NAMES.items()]
    uses = [f"{owner}.{part}".replace(":.", ":") for owner, parts in owners for part in parts]
    if differing := differences([*NAMES, *uses]):
        return differing
    tvm = _attribute("tilelang:tvm")
    gone = [
        name for name in (*FUNCTIONS, LOAD_MODULE, KEEP_MODULE) if tvm.get_global_func(name, allow_missing=True) is None
    ]
    gone += sorted({*OPERATIONS}.difference(tvm.ir.Op.list_op_names()))
    return [f"{name} is gone" for name in gone]


def differences(uses: Iterable[str]) -> list[str]:
    """Describe the differences between tilelang and `uses`, whose entries have the same form as `NAMES`."""
    return [differs for use in uses if (differs := _difference(use))]


def _difference(use: str) -> str:
    place, called, passed = use.rstrip(")").partition("(")
    name = place.replace(":", ".")
    try:
        value = _attribute(place)
    except (ImportError, AttributeError):
        return f"{name} is gone"
    if not called:
        return ""
    ordered, _, by_name = passed.partition("*")
    names, signature = re.findall(r"\w+", ordered), inspect.signature(value)
    try:
        signature.bind(*names, **dict.fromkeys(re.findall(r"\w+", by_name)))
        same = [*signature.bind_partial(*names).arguments] == names
    except TypeError:
        same = False
    return "" if same else f"{name} takes ({', '.join(signature.parameters)}) instead of ({passed})"


def _attribute(place: str) -> Any:
    """Return the value of ``module:attribute``; None for an instance attribute. Raises an error if the attribute is
    missing."""
    module, _, path = place.partition(":")
    value: Any = importlib.import_module(module)
    for name in filter(None, path.split(".")):
        made = getattr(getattr(value, "__post_init__", None), "__code__", None)
        of_instances = {*getattr(value, "__annotations__", ()), *(made.co_names if made is not None else ())}
        value = getattr(value, name, None) if name in of_instances else getattr(value, name)
    return value


def paths() -> Any:
    """Return tilelang's module `env`, which locates tilelang's files and CUDA, without importing tilelang itself.

    Because tilelang is not imported, the compile service starts seconds earlier. Raises `FileNotFoundError` if tilelang
    is not installed.
    """
    if "tilelang" in sys.modules:
        return __getattr__("env")
    name = "atune_tilelang_env"
    if name not in sys.modules:
        package = importlib.util.find_spec("tilelang")
        folders = package.submodule_search_locations if package is not None else None
        spec = importlib.util.spec_from_file_location(name, os.path.join(folders[0], "env.py")) if folders else None
        if spec is None or spec.loader is None:
            raise FileNotFoundError("tilelang is not installed")
        module = sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return sys.modules[name]


def nvcc() -> str:
    """Return the path of the nvcc that tilelang calls; empty if tilelang finds no CUDA toolkit."""
    home = paths().CUDA_HOME
    return os.path.join(home, "bin", "nvcc") if home else ""
