"""A CUDA driver and runtime that do nothing and print the calls that matter, and tensors that say they are on a GPU."""

from __future__ import annotations

import ctypes
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

PRINTED = r"""
#include <stdint.h>
#include <stdio.h>
int cuTensorMapEncodeTiled(void *map, int type, uint32_t rank, void *address, const uint64_t *sizes,
                           const uint64_t *strides, const uint32_t *box, const uint32_t *element_strides,
                           int interleave, int swizzle, int l2, int fill) {
    printf("encode %d %u %p |", type, rank, address);
    for (uint32_t i = 0; i < rank; i++)
        printf(" %ld %ld %u %u", (long)sizes[i], i + 1 < rank ? (long)strides[i] : -1, box[i], element_strides[i]);
    printf(" | %d %d %d %d\n", interleave, swizzle, l2, fill);
    fflush(stdout);
    return rank == 1;
}
int cuLaunchKernel(void *kernel, unsigned x, unsigned y, unsigned z, unsigned threads, unsigned ty, unsigned tz,
                   unsigned smem, void *stream, void **parameters, void **extra) {
    printf("launch %u %u %u with %u threads and %u bytes\n", x, y, z, threads, smem);
    fflush(stdout);
    return 0;
}
"""
CALLS = {"cuTensorMapEncodeTiled", "cuLaunchKernel"}
"""Functions of `PRINTED`. The first refuses descriptors of one dimension."""


def install(folder: Path, stubs: Path) -> None:
    """Make the libraries in `folder`, with all that tilelang's stubs in the folder `stubs` ask for."""
    for name, beginning, text in (("cuda", "cu", PRINTED), ("cudart", "cuda", "")):
        stub = (stubs / f"libstub_{name}.so").read_bytes()
        asked = {found.decode() for found in re.findall(rb"\b%s[A-Z]\w+" % beginning.encode(), stub)} - CALLS
        source = folder / f"{name}.c"
        source.write_text(text + "".join(f"int {one}(void) {{ return 0; }}\n" for one in sorted(asked)))
        library = folder / f"lib{name}.so"
        subprocess.run(["gcc", "-w", "-shared", "-fPIC", "-o", library, source], check=True)
        for version in ("1",) if name == "cuda" else ("11.0", "12", "13"):
            (folder / f"{library.name}.{version}").symlink_to(library)


class _Tensor(ctypes.Structure):
    """DLTensor of DLPack."""

    _fields_ = (
        ("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device", ctypes.c_int32),
        ("rank", ctypes.c_int32),
        ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)), ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("offset", ctypes.c_uint64), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p),
    )  # fmt: skip


class FakeTensor:
    """A contiguous float16 tensor of two dimensions at `address` of GPU 0, for `tvm_ffi.from_dlpack`."""

    def __init__(self, address: int, shape: Sequence[int]) -> None:
        numbers = ctypes.c_int64 * 2
        self._tensor = _Tensor(address, 2, 0, 2, 2, 16, 1, numbers(*shape), numbers(shape[1], 1), 0, None, None)

    def __dlpack__(self, **options: Any) -> Any:
        make = ctypes.pythonapi.PyCapsule_New
        make.restype, make.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
        return make(ctypes.addressof(self._tensor), b"dltensor", None)

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, 0
