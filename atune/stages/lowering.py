"""Candidate → Lowered: elaborate and lower a kernel, generate its source, and read facts before any compiler runs.
Keys of the artifact store cover everything that decides the machine code, so equal keys mean equal code."""

from __future__ import annotations

import functools
import hashlib
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from typing import Any

import msgspec

from atune.model.artifact import Lowered
from atune.model.candidate import COMPILE_FLAGS, FOREIGN, PASS_CONFIGS, Candidate, Config
from atune.model.device import Target
from atune.model.folders import artifacts_folder, store_file
from atune.model.layouts import Layouts, LoopFacts
from atune.model.settings import CompileSettings
from atune.stages import facts, tilelang
from atune.stages.codegen import Blob, backend_context, context_of, load_ir, printed
from atune.stages.foreign import admitted
from atune.stages.frontend import elaborated, frontend_lock, kernel_parameters, roles_of
from atune.stages.session import session, workload
from atune.stages.work import work_of
from atune.version import LIBRARIES
from atune.workload.workload import Workload

SYMBOL = "atune_kernel_{key}"
"""Global symbol of a candidate's kernel. The symbol is unique, so replacing it in the source is safe."""


def lower(candidate: Candidate, *, anew: bool = True) -> Lowered:
    """Lower a candidate. Raises the errors of elaboration and of tilelang.

    If `anew` is false and an earlier run lowered the kernel, return the earlier result, which has no blob.
    """
    started, work = time.perf_counter(), workload()
    context, symbol = backend_context(), SYMBOL.format(key=candidate.key)
    how = how_of(work, candidate.config, session().target, session().compile)
    config = dict(candidate.config)
    foreign = config.pop(FOREIGN, None)
    function = elaborated(work.kernel, work.kernel_arguments, work.as_written(config), context.target)
    roles = roles_of(function, work.out_idx, work.zero, work.restore, work.like_tilelang)
    if foreign is not None:  # in place of the task's kernel, whose roles its parameters have
        function = admitted(foreign, function, session().allow or (), on_cpu=how.kind == "c")
    function = function.with_attr("global_symbol", symbol)
    bare = ir_text(function)
    ir_key = ir_key_of(bare, how)
    lowered = None if anew else lowered_before(ir_key)
    if lowered is None:
        configs = tilelang.normalize_pass_configs(dict(how.pass_configs))
        seen: list[Layouts] = []
        instruments, orders = facts.instruments(seen), list[tuple[Any, int]]()
        without = function if how.kind == "c" else _reordered(function, None, orders)
        key = ir_key_of(ir_text(without), how) if orders or _last else ""
        last = _last.get(key)
        with tilelang.tvm.transform.PassContext(opt_level=3, config=configs, instruments=instruments), context.target:
            if last is not None and [place for _, place in orders] in ([], [last[0]]):
                _, blob, seen = last
                host, device = (load_ir(text.replace(blob.symbol, symbol)) for text in (blob.host, blob.device))
                order, kernels = orders[0][0] if orders else None, device.functions.items()
                device = tilelang.tvm.IRModule({n: _reordered(k, order, []) for n, k in kernels}, attrs=device.attrs)
            else:
                host, device, *_ = tilelang.lower_to_host_device_ir(function, context)
            lowered = _generated(candidate, function, bare, host, device, how)
        _last.clear()
        if len(orders) == 1:
            _last[key] = orders[0][1], msgspec.msgpack.decode(lowered.blob, type=Blob), seen
        with_layouts = msgspec.structs.replace(lowered.facts, layouts=seen[-1] if seen else None)
        lowered = msgspec.structs.replace(lowered, ir_key=ir_key, facts=with_layouts)
    kernel, seconds = ir_digest(function) if lowered.store_key else "", round(time.perf_counter() - started, 4)
    return msgspec.structs.replace(lowered, index=candidate.index, ir_digest=kernel, roles=roles, seconds=seconds)


_last: dict[str, tuple[int, Blob, list[Layouts]]] = {}
"""If it has one block order (`T.use_swizzle`), the kernel that this process lowered last, by its `ir_key` without the
order, and the order's place. A kernel with another order in this place, or without an order, takes its halves."""
_ORDER = "threadblock_swizzle_pattern"
"""The attribute that holds a block order. Lowering keeps the attribute, and only printing the source reads it."""


def _reordered(function: Any, order: Any, own: list[tuple[Any, int]]) -> Any:
    """Return a kernel with the block order `order` (None for no order). Add its own orders, with places, to `own`."""

    def replaced(node: Any) -> Any:
        if node.attr_key != _ORDER:
            return None
        own.append((node.value, tilelang.tvm.ir.structural_hash(node.body, map_free_vars=True)))
        return node.body if order is None else tilelang.tvm.tirx.AttrStmt(node.node, _ORDER, order, node.body)

    transform = tilelang.tvm.tirx.stmt_functor.ir_transform
    return function.with_body(transform(function.body, None, replaced, ["tirx.AttrStmt"]))


def _generated(candidate: Candidate, function: Any, bare: str, host: Any, device: Any, how: CompileInputs) -> Lowered:
    """Generate the sources of a lowered kernel, and collect its facts."""
    symbol, on_cpu = SYMBOL.format(key=candidate.key), how.kind == "c"
    source = printed(device)
    # Host code sets the grid, the TMA descriptors and the shared memory. For C, sources are merged as text instead.
    host_source = "" if on_cpu else str(tilelang.host_codegen(host, backend_context()).inspect_source())
    if symbol not in source:
        raise RuntimeError(f"the generated source does not contain {symbol}: tilelang renamed the kernel")
    parameters = kernel_parameters(function)
    calls = facts.c_arguments(function, device) if on_cpu else ()
    source_key = digest((source.replace(symbol, "K"), host_source.replace(symbol, "K")))
    code_key = digest((source_key, parameters, calls, *how.key()))
    blob = Blob(
        symbol=symbol,
        host="" if on_cpu else str(tilelang.tvm.ir.save_json(host)),
        device=str(tilelang.tvm.ir.save_json(device)),
        source=source,
        pass_configs=dict(how.pass_configs),
        calls=calls,
        flags=how.flags,
    )
    static = facts.static_facts(how.kind, device, source)
    if not on_cpu:
        static = msgspec.structs.replace(static, work=work_of(function))
    attributes = sorted(map(str, dict(device.attrs or {}).items()))
    texts = [text.partition(symbol) for text in (source, host_source)]
    alone = symbol in bare or _USERS_KERNEL in bare or any(_DIRECTIVE.search(after) for _, _, after in texts)
    before = [text for text, _, _ in texts]
    together = (how.target, how.flags, how.pass_configs, before, attributes, code_key if alone else "")
    of_user = _USERS_FILES.search(" ".join(how.flags or ())) or _USERS_INCLUDE.search(source)
    return Lowered(
        index=candidate.index,
        code_key=code_key,
        store_key="" if of_user else digest((code_key, *_generators())),
        merge_key=digest(together),
        source_key=source_key,
        params=parameters,
        facts=static,
        seconds=0.0,
        blob=msgspec.msgpack.encode(blob),
    )


# ---- keys


_DECISIVE = (
    "CPATH", "C_INCLUDE_PATH", "CPLUS_INCLUDE_PATH", "CUDA_HOME", "CUDA_PATH", "NVCC_APPEND_FLAGS",
    "NVCC_PREPEND_FLAGS", "TL_TEMPLATE_PATH", "TL_CUTLASS_PATH", "GCC_EXEC_PREFIX", "COMPILER_PATH",
)  # fmt: skip
"""Environment variables from which compilers and tilelang take folders, sources or flags."""
_LOWERS = re.compile(r"(TILELANG_(?!CACHE_DIR|TMP_DIR|DISABLE_CACHE)|TL_|TVM_)")
"""Names of environment variables that may change the code that tilelang generates."""
_USERS_FILES = re.compile(r"(^|\s)(-I|-i[a-z]+|--include|-B|@)")
_USERS_INCLUDE = re.compile(r'^\s*#\s*include\s+"', re.MULTILINE)
_USERS_KERNEL = "code_block_source"
"""Attribute that holds the text of a `T.CUDASourceCodeKernel`. tilelang prints this text among the kernels."""
_DIRECTIVE = re.compile(r"^[ \t]*#(?!pragma unroll\b|line \d|ifdef __cplusplus$|endif$)|\b_Pragma\b", re.MULTILINE)
"""Pattern for a user's preprocessor directive among the kernels, which would also affect a library's later kernels."""


def digest(value: Any) -> str:
    """Return the SHA-256 of `value` as JSON, shortened to 128 bits."""
    return hashlib.sha256(msgspec.json.encode(value, order="deterministic", enc_hook=str)).hexdigest()[:32]


@functools.cache
def toolchain(kind: str) -> tuple[str, ...]:
    """Return the versions, compiler files and CPU features (for ``-march=native``) that decide the machine code."""
    parts = [tilelang.__version__, str(sys.implementation.cache_tag)]
    parts += [f"{name}={os.environ.get(name)}" for name in _DECISIVE]
    compilers = [shutil.which(name) for name in ("g++", "gcc", "c++")]
    if kind != "c":
        nvcc = tilelang.nvcc()
        compilers.append(shutil.which(nvcc))  # possibly a script around the compiler, so the version is added
        parts.append(subprocess.run([nvcc, "--version"], capture_output=True, text=True).stdout)
    for path in compilers:
        if path is not None:
            status = os.stat(os.path.realpath(path))
            parts.append(f"{path} {status.st_size} {status.st_mtime_ns}")
    if kind == "c":
        with open("/proc/cpuinfo") as info:
            parts += sorted({line for line in info if line.startswith(("model name", "flags"))})
    return tuple(parts)


_BARE = "bare"
"""Symbol that replaces the unique symbol of each candidate's kernel when kernels are compared."""


@dataclass(frozen=True)
class CompileInputs:
    """The inputs of compilation that decide the generated code, apart from the kernel itself."""

    kind: str
    target: str
    flags: tuple[str, ...] | None
    pass_configs: Mapping[str, Any]
    host: str | None
    """Target of the host code; None to let tilelang choose."""

    def key(self) -> tuple[Any, ...]:
        """Return a key that combines the inputs with the toolchain."""
        settings = (self.target, self.flags, self.pass_configs, self.host)
        return (*settings, toolchain(self.kind))


def how_of(work: Workload, config: Config, target: Target, settings: CompileSettings) -> CompileInputs:
    """Return the compile inputs of a configuration. The configuration's own flags and passes take precedence."""
    own = config.get(COMPILE_FLAGS)
    return CompileInputs(
        kind=target.kind,
        target=str(target),
        flags=settings.flags if own is None else tuple(own),
        pass_configs={**settings.pass_configs, **work.pass_configs, **(config.get(PASS_CONFIGS) or {})},
        host=settings.target_host,
    )


def ir_text(function: Any) -> str:
    """Return an elaborated kernel as text, with a common symbol instead of its own symbol."""
    return str(tilelang.tvm.ir.save_json(function.with_attr("global_symbol", _BARE)))


def ir_key_of(text: str, how: CompileInputs) -> str:
    """Return the `ir_key` of an elaborated kernel, which is given as text."""
    environment = sorted((name, value) for name, value in os.environ.items() if _LOWERS.match(name))
    return digest((text, *how.key(), *_generators(), environment, LoopFacts.__struct_fields__))


def ir_digest(function: Any) -> str:
    """Return the `Lowered.ir_digest` of an elaborated kernel, which does not depend on the kernel's symbol and source
    lines."""
    tvm, rewrites = tilelang.tvm, ("tilelang_callback_cuda_postproc", "tilelang_callback_c_host_postproc")
    if any(tvm.get_global_func(name, allow_missing=True) is not None for name in rewrites):
        return ""  # a function of the user rewrites the source that tilelang generates
    return digest(str(tvm.ir.structural_hash(function.with_attr("global_symbol", _BARE), map_free_vars=True)))


def digest_here(work: Workload, config: Config, target: Target, settings: CompileSettings) -> str:
    """Return the `Lowered.ir_digest` of a configuration. Runs in the program's process. Raises elaboration's errors."""
    with frontend_lock:
        context = context_of(target, settings.target_host)
        function = elaborated(work.kernel, work.kernel_arguments, work.as_written(config), context.target)
        return ir_digest(function)


@functools.cache
def _generators() -> tuple[Any, ...]:
    """Return the versions of the libraries that generate code. A bug in one version may change the generated code."""
    solvers = metadata.distributions(name="z3-solver")  # not every tilelang needs it
    return (LIBRARIES, *(solver.version for solver in solvers))


def lowered_before(ir_key: str) -> Lowered | None:
    """Return the lowered kernel of an earlier run; None if the artifact store lacks this kernel. The store may lack the
    kernel's library."""
    try:
        known = msgspec.json.decode(store_file(artifacts_folder(), "lowered", ir_key).read_bytes(), type=Lowered)
    except (OSError, msgspec.MsgspecError):
        return None
    return known if known.ir_key == ir_key else None


def store_key(work: Workload, config: Config, target: Target, settings: CompileSettings) -> str:
    """Return the artifact store's key for the library of a configuration; empty if no run lowered the kernel.

    Runs in the program's process, and only elaborates the kernel. Raises the errors of elaboration.
    """
    how = how_of(work, config, target, settings)
    with frontend_lock:
        context = context_of(target, settings.target_host)
        function = elaborated(work.kernel, work.kernel_arguments, work.as_written(config), context.target)
        known = lowered_before(ir_key_of(ir_text(function), how))
    return "" if known is None else known.store_key
