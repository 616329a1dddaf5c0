"""Candidate → Lowered: elaborate the kernel, lower it, and read off what is known before any compiler runs."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import pickle
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import msgspec

from atune.model.artifact import Failure, KernelParam, Lowered, StaticFacts
from atune.model.candidate import COMPILE_FLAGS, PASS_CONFIGS, Candidate
from atune.stages.accelerators import host_code, mutation
from atune.stages.accelerators.family import Families, Modules, split
from atune.stages.accelerators.host_code import HostCode
from atune.stages.accelerators.orders import without_order
from atune.stages.frontend import elaboration
from atune.stages.session.session import candidate_of, session, workload
from atune.system.paths import artifacts_folder, code_file, lowered_file

SYMBOL = "atune_kernel_{key}"
"""A candidate's global symbol. It occurs nowhere else, so that replacing it in the source is safe."""

_LOCAL_ARRAY = re.compile(
    r"^\s*(float|int|uint|half_t|bfloat16_t|double|signed char|uchar)\s+\w+\[(\d+)\];", re.MULTILINE
)
_BYTES = {"double": 8, "half_t": 2, "bfloat16_t": 2, "signed char": 1, "uchar": 1}


class Blob(msgspec.Struct, frozen=True):
    """What lowering hands to codegen. `calls`: for the CPU, what each argument of the C function is."""

    symbol: str
    host: str
    device: str
    """Both lowered modules, in tvm's JSON. No `host` where `host_code` says it."""
    source: str
    host_source: str
    """Both as they are printed."""
    host_code: HostCode | None
    pass_configs: dict[str, Any]
    calls: tuple[int | str, ...] = ()
    flags: tuple[str, ...] | None = None
    """The compiler's flags; None for the target's own."""
    backend: str = ""
    """tilelang's adapter that builds it alone; empty where it may be grouped."""
    function: bytes = b""
    """For such an adapter, the PrimFunc before lowering."""


def run(payload: bytes) -> bytes:
    """Entry point: msgpack of a `Candidate` → msgpack of `Lowered` or `Failure`.

    A kernel that an earlier run lowered is not lowered again where the artifact store has its library.
    """
    return _run(payload, lambda key: _lowered_before(key))


def run_anew(payload: bytes) -> bytes:
    """Entry point: as `run`, whatever earlier runs have left."""
    return _run(payload, lambda key: None)


def _run(payload: bytes, before: Callable[[str], Lowered | None]) -> bytes:
    candidate = candidate_of(payload)
    try:
        mutation.install()
        result: Lowered | Failure = lower(candidate, before)
    except (Exception, SystemExit) as error:
        result = Failure(candidate.index, "lower", _one_line(error), _traceback())
    return msgspec.msgpack.encode(result)


def _lowered_before(ir_key: str) -> Lowered | None:
    folder = artifacts_folder()
    try:
        found = msgspec.json.decode(lowered_file(folder, ir_key).read_bytes(), type=Lowered)
    except (OSError, msgspec.MsgspecError):
        return None
    return found if found.ir_key == ir_key and code_file(folder, found.code_key).exists() else None


def elaborate(candidate: Candidate) -> Any:
    """Return the candidate's PrimFunc under its own symbol."""
    work = workload()
    function = _whole_lines(elaboration.elaborate(work.kernel, work.arguments, candidate.config))
    return function.with_attr("global_symbol", SYMBOL.format(key=candidate.key))


_IMPORTED = "pragma_import_c"
"""The annotation that `T.import_source` makes."""


def _whole_lines(function: Any) -> Any:
    """Return `function` with a newline at the end of the texts that it imports: tilelang prints what follows behind."""
    from tilelang import tvm

    def ended(block: Any) -> Any:
        text = block.annotations.get(_IMPORTED)
        if text is None or str(text).endswith("\n"):
            return None
        return tvm.tirx.SBlock(
            block.iter_vars,
            block.reads,
            block.writes,
            block.name_hint,
            block.body,
            block.init,
            block.alloc_buffers,
            block.match_buffers,
            {**dict(block.annotations), _IMPORTED: f"{text}\n"},
        )

    body = tvm.tirx.stmt_functor.ir_transform(function.body, None, ended, ["tirx.SBlock"])
    return function if body.same_as(function.body) else function.with_body(body)


def effective_pass_configs(candidate: Candidate) -> dict[str, Any]:
    """Merge pass configs: the settings', the workload's, the candidate's own; the later one wins."""
    return {**session().compile.pass_configs, **workload().pass_configs, **candidate.config.get(PASS_CONFIGS, {})}


def effective_flags(candidate: Candidate) -> tuple[str, ...] | None:
    """Return the candidate's own compiler flags, else those of the settings."""
    own = candidate.config.get(COMPILE_FLAGS)
    return session().compile.flags if own is None else tuple(own)


def lower(candidate: Candidate, before: Callable[[str], Lowered | None] = lambda key: None) -> Lowered:
    """Lower one candidate. Raises whatever elaboration or tilelang raises.

    `before` finds what an earlier run lowered the same kernel to, by its `ir_key`; then nothing else is done.
    """
    from tilelang import tvm
    from tilelang.backend.module import create_backend_context
    from tilelang.engine.lower import (
        device_codegen_without_compile,
        extrac_params,
        host_codegen,
        lower_to_host_device_ir,
    )
    from tilelang.transform.pass_config import normalize_pass_configs

    started = time.perf_counter()
    target = session().target
    context = create_backend_context(target.tvm(), session().compile.target_host, "auto")
    pass_configs = effective_pass_configs(candidate)
    symbol = SYMBOL.format(key=candidate.key)
    with context.target:
        function = elaborate(candidate)
    settings, flags = session().compile, effective_flags(candidate)
    alone = settings.backend if target.kind == "cuda" and settings.backend in ("cython", "nvrtc") else ""
    how = (settings.accelerate, alone, _shares())
    beside = (str(context.target), flags, pass_configs, *how, _toolchain(target.kind))
    bare, orders = split(function)
    environment = sorted((k, v) for k, v in os.environ.items() if _LOWERS.match(k))
    whole = str(tvm.ir.structural_hash(function.with_attr("global_symbol", "bare")))
    ir_key = _digest((bare, [str(order.value) for order in orders], whole, *beside, environment))
    if (known := before(ir_key)) is not None:
        seconds = round(time.perf_counter() - started, 4)
        return msgspec.structs.replace(known, index=candidate.index, seconds=seconds, blob=b"")
    with tvm.transform.PassContext(opt_level=3, config=normalize_pass_configs(pass_configs)), context.target:

        def print_(device: Any) -> str:
            return str(device_codegen_without_compile(device, context).inspect_source())

        def lower_ir() -> Modules:
            host, device, *_ = lower_to_host_device_ir(function, context)
            if target.kind == "c":  # C sources are merged as text
                return Modules(None, "", "", device, "", print_(device))
            # The host's source carries the grid, the TMA descriptors and the launch's shared memory.
            host_source = str(host_codegen(host, context).inspect_source())
            code = None
            if not alone and (found := host_code.parse(host_source, symbol)):
                with contextlib.suppress(OSError):  # a full disk
                    host_code.keep(found[0].template, found[1], session().run_dir)
                    code = found[0]
            host_json = "" if code else str(tvm.ir.save_json(host))
            return Modules(code, host_json, str(tvm.ir.save_json(device)), device, host_source, print_(device))

        if target.kind == "cuda":
            families = Families(os.path.join(session().run_dir, "families"), repr(beside), print_)
            modules = families.lowered(bare, orders, symbol, lower_ir)
        else:
            modules = lower_ir()
        device, source, host_source = modules.device, modules.source, modules.host_source
        params = extrac_params(function)
    if symbol not in source:
        raise RuntimeError(f"the generated source does not contain {symbol}; tilelang renamed the kernel")
    sources = (source.replace(symbol, "K"), host_source.replace(symbol, "K"))
    buffers = [function.buffer_map.get(v) for v in function.params]
    parameters = tuple(_param(p, b) for p, b in zip(params or (), buffers, strict=True))
    calls = _c_arguments(function, device) if target.kind == "c" else ()
    compiler = (settings.accelerate, settings.target_host, alone, _shares())
    same_code = (*sources, parameters, calls, str(target), flags, pass_configs, compiler, _toolchain(target.kind))
    attributes = sorted(map(str, dict(device.attrs or {}).items()))
    merge = (alone and symbol, modules.host is None, str(target), flags, pass_configs, _imported(source), attributes)
    blob = Blob(
        symbol,
        modules.host_json,
        modules.device_json,
        source,
        host_source,
        modules.host,
        pass_configs,
        calls,
        flags,
        alone,
        pickle.dumps(function) if alone else b"",
    )
    return Lowered(
        index=candidate.index,
        code_key=_digest(same_code),
        merge_key=_digest(merge),
        params=parameters,
        facts=_facts(device, source),
        seconds=round(time.perf_counter() - started, 4),
        blob=msgspec.msgpack.encode(blob),
        ir_key=ir_key,
        compile_key=_digest((without_order(source, symbol), merge[1:], parameters)) if _shares() else "",
        storable=not _USERS_FILES.search(" ".join(flags or ())) and not _USERS_INCLUDE.search(source),
    )


_DECISIVE = (
    "CPATH", "C_INCLUDE_PATH", "CPLUS_INCLUDE_PATH", "CUDA_HOME", "CUDA_PATH", "NVCC_APPEND_FLAGS",
    "NVCC_PREPEND_FLAGS", "TL_TEMPLATE_PATH", "TL_CUTLASS_PATH", "GCC_EXEC_PREFIX", "COMPILER_PATH",
)  # fmt: skip
"""Environment variables that compilers and tilelang take sources or flags from."""
_LOWERS = re.compile(r"(TILELANG_(?!CACHE_DIR|TMP_DIR|DISABLE_CACHE)|TL_|TVM_)")
"""Environment variables that may decide what tilelang makes of a kernel."""
_USERS_FILES = re.compile(r"(^|\s)(-I|-i[a-z]+|--include|-B|@)")
_USERS_INCLUDE = re.compile(r'^\s*#\s*include\s+"', re.MULTILINE)


def _imported(source: str) -> list[str]:
    """Return what stands before the kernels beside system includes: two such texts may not go together."""
    before = source.partition("_kernel(")[0]
    return [
        line
        for line in before.splitlines()
        if not line.startswith(("#include <", "//")) and "atune_kernel_" not in line
    ]


@functools.cache
def _toolchain(kind: str) -> tuple[str, ...]:
    """Return what else decides the machine code: versions, the compilers' files, and the CPU for ``-march=native``."""
    import tilelang

    found = [tilelang.__version__, str(sys.implementation.cache_tag)]
    found += [f"{name}={os.environ.get(name)}" for name in _DECISIVE]
    compilers = [shutil.which(name) for name in ("g++", "gcc", "c++")]
    if kind != "c":
        from tilelang.contrib.nvcc import get_nvcc_compiler

        nvcc = get_nvcc_compiler()
        compilers.append(shutil.which(nvcc))  # perhaps a script before the real one, which tells its version
        found.append(subprocess.run([nvcc, "--version"], capture_output=True, text=True).stdout)
    for path in compilers:
        if path is not None:
            status = os.stat(os.path.realpath(path))
            found.append(f"{path} {status.st_size} {status.st_mtime_ns}")
    if kind == "c":
        with open("/proc/cpuinfo") as info:
            found += sorted({line for line in info if line.startswith(("model name", "flags"))})
    return tuple(found)


def _param(param: Any, buffer: Any = None) -> KernelParam:
    scalar = bool(param.is_scalar()) if hasattr(param, "is_scalar") else False
    strides = None if buffer is None or scalar or _is_compact(buffer) else _sizes(buffer.strides)
    return KernelParam(dtype=str(param.dtype), shape=None if scalar else _sizes(param.shape), strides=strides)


def _sizes(sizes: Any) -> tuple[int | str, ...]:
    texts = ["".join(str(d)) for d in sizes]  # TVM's own kind of string is none to msgspec
    return tuple(int(text) if text.lstrip("-").isdigit() else text for text in texts)


def _is_compact(buffer: Any) -> bool:
    """Tell whether a buffer's strides are those of a contiguous tensor."""
    from tilelang import tvm

    analyzer, expected = tvm.arith.Analyzer(), 1
    for size, stride in zip(reversed(list(buffer.shape)), reversed(list(buffer.strides)), strict=False):
        if not analyzer.can_prove_equal(stride, expected):
            return False
        expected = size * expected
    return True


def _c_arguments(function: Any, device: Any) -> tuple[int | str, ...]:
    """Map the generated C function's arguments to kernel parameters (positions) and symbolic dimensions (names)."""
    buffers = {
        str(function.buffer_map[v].data.name): i for i, v in enumerate(function.params) if v in function.buffer_map
    }
    scalars = {str(v.name): i for i, v in enumerate(function.params) if v not in function.buffer_map}
    kernels = list(device.functions.values())
    if len(kernels) != 1:
        return ()
    return tuple(buffers.get(str(v.name), scalars.get(str(v.name), str(v.name))) for v in kernels[0].params)


def _facts(device: Any, source: str) -> StaticFacts:
    smem, threads, grid = 0, 1, (1, 1, 1)
    for function in device.functions.values():
        attrs = dict(function.attrs or {})
        extent = {str(k): int(v) for k, v in dict(attrs.get("thread_extent", {})).items() if str(v).isdigit()}
        smem = max(smem, int(attrs.get("dyn_shared_memory_buf", 0)))
        threads = max(
            threads, extent.get("threadIdx.x", 1) * extent.get("threadIdx.y", 1) * extent.get("threadIdx.z", 1)
        )
        grid = (extent.get("blockIdx.x", 1), extent.get("blockIdx.y", 1), extent.get("blockIdx.z", 1))
    if session().target.kind == "c":
        return StaticFacts()
    local = max((int(n) * _BYTES.get(t, 4) // 4 for t, n in _LOCAL_ARRAY.findall(source)), default=0)
    return StaticFacts(smem_bytes=smem, threads=threads, grid=grid, accumulators=local)


def _digest(value: Any) -> str:
    return hashlib.sha256(msgspec.json.encode(value, order="deterministic", enc_hook=str)).hexdigest()[:32]


def _shares() -> bool:
    one = session()
    return one.target.kind == "cuda" and one.compile.acceleration.auto and one.benchmark.n_final > 0


def _one_line(error: BaseException) -> str:
    text = str(error).strip()
    lines = [line for line in text.splitlines() if line.strip()]
    # TVM puts the C++ stack first and the message last.
    return f"{type(error).__name__}: {lines[-1].strip() if lines else ''}"[:500]


def _traceback() -> str:
    import traceback

    return traceback.format_exc(limit=-6)[-4000:]
