"""tilelang's adapters ``cython`` and ``nvrtc`` for CUDA: one library per kernel, built and called as by tilelang.

The build uses tilelang's own wrappers and library generators. The compile worker loads nothing and needs no GPU.
`atune.stages.measure.adapters` loads the libraries.
"""

from __future__ import annotations

import os
import pickle
import re
import shutil
from collections.abc import Callable
from typing import Any

import msgspec

from atune.stages.compile import ir
from atune.stages.compile.device_source import cuda_headers
from atune.stages.compile.lowering import Blob
from atune.stages.measure.adapters import Cubin


def build(blob: Blob, path: str, target: Any, verbose: bool) -> tuple[str, tuple[int | str, ...]]:
    """Build `blob`'s library `path`. Returns the device compiler, and the meaning of each argument of the call.

    Compilers write to this process' stdout and stderr. Raises what tilelang raises.
    """
    from tilelang import tvm
    from tilelang.jit.adapter.libgen import LibraryGenerator
    from tilelang.jit.adapter.wrapper import TLPyWrapper, TLWrapper
    from tilelang.transform.pass_config import normalize_pass_configs

    function, pass_configs = pickle.loads(blob.function), normalize_pass_configs(blob.pass_configs)
    wrapper = TLWrapper(target) if blob.backend == "cython" else TLPyWrapper(target)
    wrapper.assign_optimized_module(tvm.IRModule({blob.symbol: function}))
    wrapper.assign_pass_configs(pass_configs)
    wrapper.assign_host_module(ir.load(blob.host))
    wrapper.assign_device_module(ir.load(blob.device))
    wrapped: Any = wrapper.wrap(blob.source)
    flags = list(blob.flags or ())
    if blob.backend == "cython":
        generator = LibraryGenerator(target, verbose=verbose)
        generator.assign_pass_configs(pass_configs)
        generator.assign_compile_flags(flags)
        generator.update_lib_code(wrapped)
        generator.compile_lib()
        shutil.move(str(generator.libpath), path)
        return "nvcc", _arguments(function, r"int call\((.*)\)", wrapped)
    _in_child(lambda: _compile_cubin(blob, target, flags, wrapped, path))
    return "nvrtc", _arguments(function, r"def call\(kernels, (.*)\):", wrapped["host_func"])


def _compile_cubin(blob: Blob, target: Any, flags: list[str], wrapped: dict[str, Any], path: str) -> None:
    from tilelang.jit.adapter.nvrtc.libgen import NVRTCLibraryGenerator

    generator = NVRTCLibraryGenerator(target, verbose=True)  # otherwise its errors do not say what is wrong
    generator.update_lib_code(blob.source)
    generator.update_host_func(wrapped["host_func"])
    headers = cuda_headers()  # tilelang's guess misses them if nvcc on PATH is a script
    generator.assign_compile_flags([*flags, *([f"-I{headers}", f"-I{headers}/cccl"] if headers else [])])
    with target:
        generator.compile_lib()
    with open(str(generator.libpath), "rb") as cubin:
        packed = Cubin(cubin.read(), str(wrapped["host_func"]), tuple(map(str, wrapped["function_names"])))
    with open(path, "wb") as file:
        file.write(msgspec.msgpack.encode(packed))


def _in_child(work: Callable[[], None]) -> None:
    """Do `work` in a fork, because NVRTC never frees a compile's memory. Raises `RuntimeError` with the error's
    text."""
    readable, writable = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.close(readable)
            work()
            status = 0
        except BaseException as error:
            with open(writable, "w", errors="replace") as pipe:
                pipe.write(f"{type(error).__name__}: {error}")
        finally:
            os._exit(status)
    os.close(writable)
    with open(readable, errors="replace") as pipe:
        words = pipe.read()
    _, status = os.waitpid(child, 0)
    if status:
        raise RuntimeError(words or f"NVRTC ended its process, wait status {status}")


def _arguments(function: Any, signature: str, source: str) -> tuple[int | str, ...]:
    """Map the generated call's arguments to kernel parameters (positions) and symbolic dimensions (names)."""
    found = re.search(signature, source)
    if found is None:
        raise RuntimeError("tilelang's wrapper has no call")
    names = [part.split("=")[0].split()[-1].lstrip("*") for part in found[1].split(",")]
    places: dict[str, int] = {}
    for position, variable in enumerate(function.params):
        buffer = function.buffer_map[variable].data if variable in function.buffer_map else variable
        places[str(buffer.name)] = position
    return tuple(places.get(name, name) for name in names if name != "stream")
