"""tilelang's adapters ``cython`` and ``nvrtc`` for CUDA: one library a kernel, built and called as tilelang does it.

The build uses tilelang's own wrappers and library generators; nothing is loaded in the compile worker, which need not
have a GPU. `load` belongs to the device's process, and to `TuneResult.kernel`.
"""

from __future__ import annotations

import ctypes
import os
import pickle
import re
import shutil
import tempfile
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from atune.model.artifact import Artifact, KernelParam
from atune.stages.compile import ir
from atune.stages.compile.device_source import cuda_headers
from atune.stages.compile.lowering import Blob


class Cubin(msgspec.Struct, frozen=True):
    """What is in a library of the backend nvrtc: device code, and tilelang's Python that launches it."""

    cubin: bytes
    launcher: str
    kernels: tuple[str, ...]


def build(blob: Blob, path: str, target: Any, verbose: bool) -> tuple[str, tuple[int | str, ...]]:
    """Build `blob`'s library `path`. Returns the device compiler, and what each argument of the call is.

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

    generator = NVRTCLibraryGenerator(target, verbose=True)  # else its errors do not say what is wrong
    generator.update_lib_code(blob.source)
    generator.update_host_func(wrapped["host_func"])
    headers = cuda_headers()  # tilelang's guess misses them where nvcc on PATH is a script
    generator.assign_compile_flags([*flags, *([f"-I{headers}", f"-I{headers}/cccl"] if headers else [])])
    with target:
        generator.compile_lib()
    with open(str(generator.libpath), "rb") as cubin:
        packed = Cubin(cubin.read(), str(wrapped["host_func"]), tuple(map(str, wrapped["function_names"])))
    with open(path, "wb") as file:
        file.write(msgspec.msgpack.encode(packed))


def _in_child(work: Callable[[], None]) -> None:
    """Do `work` in a fork: NVRTC never frees what a compile took. Raises `RuntimeError` with the words of its error."""
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


def load(artifact: Artifact) -> Callable[..., None]:
    """Return a function of all the kernel's parameters that launches it on torch's current stream.

    Raises `OSError`, `RuntimeError` or `ImportError` for what cannot be loaded.
    """
    return _load_cython(artifact) if artifact.backend == "cython" else _load_nvrtc(artifact)


def _load_cython(artifact: Artifact) -> Callable[..., None]:
    import torch

    library = ctypes.CDLL(artifact.path)
    library.get_last_error.restype = ctypes.c_char_p
    if library.init() != 0:
        raise RuntimeError(library.get_last_error().decode(errors="replace"))

    def call(*arguments: Any) -> None:
        values = [_c_value(value) for value in _values(artifact, arguments)]
        stream = torch.cuda.current_stream().cuda_stream
        if library.call(*values, ctypes.c_void_p(stream)) != 0:
            raise RuntimeError(library.get_last_error().decode(errors="replace"))

    return call


def _c_value(value: Any) -> Any:
    if hasattr(value, "data_ptr"):
        return ctypes.c_void_p(value.data_ptr())
    return ctypes.c_float(value) if isinstance(value, float) else ctypes.c_int64(int(value))


def _load_nvrtc(artifact: Artifact) -> Callable[..., None]:
    import torch
    from cuda.bindings import driver
    from tilelang.jit.adapter.nvrtc.libgen import NVRTCLibraryGenerator

    with open(artifact.path, "rb") as file:
        packed = msgspec.msgpack.decode(file.read(), type=Cubin)
    generator = NVRTCLibraryGenerator(None)
    with tempfile.TemporaryDirectory() as folder:
        with open(f"{folder}/kernel.cubin", "wb") as cubin:
            cubin.write(packed.cubin)
        with open(f"{folder}/kernel.py", "w") as launcher:
            launcher.write(packed.launcher)
        generator.load_lib(f"{folder}/kernel.cubin")
    kernels = {}
    for name in packed.kernels:
        status, kernels[name] = driver.cuLibraryGetKernel(generator.culib, name.encode())
        if status != driver.CUresult.CUDA_SUCCESS:
            raise RuntimeError(f"{artifact.path} has no kernel {name}: {status}")

    def call(*arguments: Any) -> None:
        stream = torch.cuda.current_stream().cuda_stream
        generator.pymodule.call(kernels, *_values(artifact, arguments), stream=stream)

    return call


def _values(artifact: Artifact, arguments: Sequence[Any]) -> list[Any]:
    from atune.stages.measure.loader import bind_dimensions

    dims = any(isinstance(what, str) for what in artifact.calls)
    params: Sequence[KernelParam] = artifact.params
    known = bind_dimensions(params, arguments) if dims else {}
    return [known[what] if isinstance(what, str) else arguments[what] for what in artifact.calls]
