"""Libraries of tilelang's adapters ``cython`` and ``nvrtc`` for CUDA: loaded, and called as tilelang does it."""

from __future__ import annotations

import ctypes
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec

from atune.model.artifact import Artifact, KernelParam


class Cubin(msgspec.Struct, frozen=True):
    """Contents of a library of the backend nvrtc: device code, and tilelang's Python that launches it."""

    cubin: bytes
    launcher: str
    kernels: tuple[str, ...]


def load(artifact: Artifact) -> Callable[..., None]:
    """Return a function of all the kernel's parameters that launches it on torch's current stream.

    Raises `OSError`, `RuntimeError` or `ImportError` if the library cannot be loaded.
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

    generator = NVRTCLibraryGenerator(None)
    with unpacked(artifact) as (cubin, packed):
        generator.load_lib(cubin)
    kernels = {}
    for name in packed.kernels:
        status, kernels[name] = driver.cuLibraryGetKernel(generator.culib, name.encode())
        if status != driver.CUresult.CUDA_SUCCESS:
            raise RuntimeError(f"{artifact.path} has no kernel {name}: {status}")

    def call(*arguments: Any) -> None:
        stream = torch.cuda.current_stream().cuda_stream
        generator.pymodule.call(kernels, *_values(artifact, arguments), stream=stream)

    return call


@contextmanager
def unpacked(artifact: Artifact) -> Iterator[tuple[str, Cubin]]:
    """Lay out an nvrtc library as tilelang keeps one: a file ``kernel.cubin`` beside ``kernel.py``; give its path."""
    with open(artifact.path, "rb") as file:
        packed = msgspec.msgpack.decode(file.read(), type=Cubin)
    with tempfile.TemporaryDirectory() as folder:
        with open(f"{folder}/kernel.cubin", "wb") as cubin:
            cubin.write(packed.cubin)
        with open(f"{folder}/kernel.py", "w") as launcher:
            launcher.write(packed.launcher)
        yield f"{folder}/kernel.cubin", packed


def _values(artifact: Artifact, arguments: Sequence[Any]) -> list[Any]:
    from atune.stages.measure.loader import bind_dimensions

    dims = any(isinstance(what, str) for what in artifact.calls)
    params: Sequence[KernelParam] = artifact.params
    known = bind_dimensions(params, arguments) if dims else {}
    return [known[what] if isinstance(what, str) else arguments[what] for what in artifact.calls]
