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
TENSORMAP = "libatune_tensormap.so"
"""``tensormap.c``: the one function that host code calls, and that tilelang's runtime lacks."""
PROVIDED = frozenset({"__tvm_set_device", "__tvm_tensormap_create_tiled"})
"""Functions that a library of a bundle may call by name."""
REGISTERED = "ffi.Module.load_from_bytes.cuda"
"""The function by which the runtime tells tvm_ffi that it is there."""
_loading = threading.Lock()


def prepare(folder: Path) -> None:
    """Load what the libraries of the bundle in `folder` need, once in a process. Raises `OSError`."""
    import tvm_ffi

    with _loading:
        if tvm_ffi.get_global_func(REGISTERED, allow_missing=True) is None:
            _load_runtime(runtime_folder() or folder / RUNTIME)


def cuda_function(path: str, symbol: str, folder: Path) -> Callable[..., Any]:
    """Return the function `symbol` of the library at `path`. It launches on torch's current stream.

    `folder`: the bundle's. Raises `OSError`, `RuntimeError` and `AttributeError` if it does not load.
    """
    import tvm_ffi

    prepare(folder)
    library = tvm_ffi.load_module(path)
    library.import_module(tensormap(folder / RUNTIME / TENSORMAP))  # not registered: tilelang registers its own
    found: Callable[..., Any] = library[symbol]
    return found


def tensormap(path: Path) -> Any:
    """Return the module of the library `TENSORMAP` at `path`, which calls the driver's function."""
    import tvm_ffi

    try:
        encode = ctypes.cast(ctypes.CDLL("libcuda.so.1").cuTensorMapEncodeTiled, ctypes.c_void_p).value
    except (OSError, AttributeError):
        encode = None  # a call then says so
    ctypes.c_void_p.in_dll(ctypes.CDLL(str(path.absolute())), "atune_encode").value = encode
    return tvm_ffi.load_module(str(path.absolute()))


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
