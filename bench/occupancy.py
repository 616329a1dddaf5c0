"""Resident blocks of twenty kernels, as `atune explain` tells them and as the CUDA driver does.

python bench/occupancy.py

Compiles for sm_90a and needs a GPU of that architecture: the driver loads each binary and answers
cuOccupancyMaxActiveBlocksPerMultiprocessor. It writes bench/results/occupancy.json, and fails where any figure differs.
"""

from __future__ import annotations

import ctypes
import json
import re
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from registers import KERNELS, ROOT, binary, explained

OUT = ROOT / "bench" / "results" / "occupancy.json"
STATIC_SMEM, MOST_DYNAMIC_SMEM = 1, 8
"""Attributes of a function (`CUfunction_attribute`)."""


class Driver:
    """The first GPU, by the CUDA driver's C interface."""

    def __init__(self) -> None:
        self._cuda = ctypes.CDLL("libcuda.so.1")
        device, context = ctypes.c_int(), ctypes.c_void_p()
        self("cuInit", 0)
        self("cuDeviceGet", ctypes.byref(device), 0)
        self("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self("cuCtxSetCurrent", context)
        name = ctypes.create_string_buffer(100)
        self("cuDeviceGetName", name, 100, device)
        self.name = name.value.decode()

    def __call__(self, function: str, *arguments: Any) -> None:
        """Call a function. Raises `RuntimeError` with its status if that is not success."""
        if status := getattr(self._cuda, function)(*arguments):
            raise RuntimeError(f"{function}: CUresult {status}")

    def blocks(self, cubin: bytes, kernel: str, threads: int, smem_bytes: int) -> int:
        """Return how many blocks a multiprocessor holds. `smem_bytes`: of a block, static and dynamic."""
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        static, blocks = ctypes.c_int(), ctypes.c_int()
        self("cuModuleLoadData", ctypes.byref(module), cubin)
        try:
            self("cuModuleGetFunction", ctypes.byref(function), module, kernel.encode())
            self("cuFuncGetAttribute", ctypes.byref(static), STATIC_SMEM, function)
            dynamic = smem_bytes - static.value
            self("cuFuncSetAttribute", function, MOST_DYNAMIC_SMEM, dynamic)
            ask = "cuOccupancyMaxActiveBlocksPerMultiprocessor"
            self(ask, ctypes.byref(blocks), function, threads, ctypes.c_size_t(dynamic))
        finally:
            self("cuModuleUnload", module)
        return blocks.value


def compiled(kernel: tuple[str, str]) -> tuple[dict[str, Any], bytes]:
    """Return what `atune explain` says of a kernel, and its binary."""
    found = explained(*kernel)
    return found, binary(found["source"])[0]


def main() -> int:
    """Write the table. The exit status is 1 where a row differs."""
    driver = Driver()
    with ThreadPoolExecutor(8) as pool:
        every = list(pool.map(compiled, KERNELS))
    rows = list[dict[str, Any]]()
    for (workload, config), (found, cubin) in zip(KERNELS, every, strict=True):
        [name] = set(re.findall(r"__global__ void (?:__launch_bounds__\([^)]*\) )?(\w+)\(", found["source"]))
        theirs = driver.blocks(cubin, name, found["threads"], found["smem_bytes"])
        row = {name: found[name] for name in ("threads", "registers", "smem_bytes", "occupancy_blocks")}
        rows.append({"workload": workload, "config": config, **row, "driver": theirs})
    OUT.write_text(json.dumps({"device": driver.name, "rows": rows}, indent=1) + "\n")
    for row in rows:
        print("same" if row["driver"] == row["occupancy_blocks"] else "DIFFERS", *row.values())
    return 0 if all(row["driver"] == row["occupancy_blocks"] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
