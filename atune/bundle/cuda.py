"""CUDA libraries, loaded by ``apache-tvm-ffi`` and tilelang's runtime, but without tilelang."""

from __future__ import annotations

import ctypes
import importlib.util
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from atune.bundle.manifest import RUNTIME

LIBRARY = "libtvm_runtime.so"
"""tilelang's runtime. It has tvm_ffi load machine code, launches kernels, and needs the ``libstub_*.so`` next to it."""
STUBS = "libstub_*.so"
"""Libraries that find CUDA's, and other vendors', when they are first called."""
REGISTERED = "ffi.Module.load_from_bytes.cuda"
"""The function by which the runtime tells tvm_ffi that it is there."""
_loading = threading.Lock()


def cuda_function(path: str, symbol: str, folder: Path) -> Callable[..., Any]:
    """Return the function `symbol` of the library at `path`. It launches on torch's current stream.

    Raises `OSError`, `RuntimeError` and `AttributeError` if it does not load.
    """
    import tvm_ffi

    with _loading:
        if tvm_ffi.get_global_func(REGISTERED, allow_missing=True) is None:
            _load_runtime(runtime_folder() or folder / RUNTIME)
    found: Callable[..., Any] = tvm_ffi.load_module(path)[symbol]
    return found


def runtime_folder() -> Path | None:
    """Return the folder of tilelang's own runtime; None if tilelang is not installed. Imports nothing.

    If tilelang is installed, bundles load its copy: two copies in one process would end it, because each registers the
    same functions with tvm_ffi. A later ``import tilelang`` finds that copy loaded.
    """
    spec = importlib.util.find_spec("tilelang")
    for place in (spec.submodule_search_locations or ()) if spec is not None else ():
        if (Path(place) / "lib" / LIBRARY).exists():
            return Path(place) / "lib"
    return None


def _load_runtime(folder: Path) -> None:
    """Load the runtime and its stubs for all libraries to see. A bundle's library names none of them."""
    for library in (*sorted(folder.glob(STUBS)), folder / LIBRARY):
        ctypes.CDLL(str(library.absolute()), ctypes.RTLD_GLOBAL)
