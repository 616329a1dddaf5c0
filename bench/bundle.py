"""What a bundle's call costs over its kernel's own: nanoseconds a call, in turn, and the first call in a fresh process.

    python bench/bundle.py [--target c|cuda] [--rounds N] [--out FOLDER]

The kernel's own call is its function from the library, with a `torch.empty` for the output; on the CPU it takes the
addresses of the tensors. Nobody can leave that out. «Any size» is a kernel with a symbolic dimension, called with a
size that was tuned, and with one that the nearest problem's kernel serves. A round times each once, in an order that
rotates. What is reported is the median over rounds of the difference in one round, with its 95 % interval. The fresh
processes cannot import tilelang. Their first call comes once torch is imported and, on a GPU, has its context; the load
is apart.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import common
import tilelang.language as T
import torch
from overhead import difference, in_turn

import atune

PROBLEMS = (64, 256, 1024)
BETWEEN = 192
"""A size that was not tuned."""
FRESH = 5
"""Fresh processes."""
FIRST = """
import json, sys, time
sys.modules["tilelang"] = None
import torch
A = torch.ones(64, device=sys.argv[2])
(A + 1).sum().item()
now = time.perf_counter
started = now()
from atune.bundle import load
imported = now()
bundle = load(sys.argv[1])
loaded = now()
B = bundle(A)
first = now()
assert B.sum().item() == 128
print(json.dumps({"import_ms": imported - started, "load_ms": loaded - imported, "first_ms": first - loaded}))
"""


def double(n: int, any_size: bool = False, block: int = 64) -> Any:
    """Gives the kernel that doubles."""
    size = T.dynamic("n") if any_size else n

    @T.prim_func
    def main(A: T.Tensor((size,), "float32"), B: T.Tensor((size,), "float32")):
        with T.Kernel(T.ceildiv(size, block)) as bx:
            for i in T.serial(block):
                B[bx * block + i] = A[bx * block + i] * 2

    return main


def double_on_gpu(n: int, any_size: bool = False, block: int = 64) -> Any:
    """Gives the kernel that doubles, on a GPU."""
    size = T.dynamic("n") if any_size else n

    @T.prim_func
    def main(A: T.Tensor((size,), "float32"), B: T.Tensor((size,), "float32")):
        with T.Kernel(T.ceildiv(size, block), threads=block) as bx:
            for i in T.Parallel(block):
                B[bx * block + i] = A[bx * block + i] * 2

    return main


def tuned(kernel: Any, target: str, folder: Path, *, any_size: bool) -> list[Any]:
    """Tune `PROBLEMS`, and write their bundle."""
    arguments = [{"n": n, "any_size": any_size} for n in PROBLEMS]
    space = {"block": [32, 64]}
    found = [atune.run(atune.Workload(kernel, space, arguments=one, out_idx=-1), target=target) for one in arguments]
    atune.results.save_bundle(folder, found)
    return found


def own_call(bundle: atune.bundle.Bundle, A: Any) -> Callable[[], Any]:
    """Return the call of the first problem's function with a fresh output, without any check."""
    size = A.shape[0]
    first = bundle.manifest["problems"][0]
    path = str(bundle.folder / f"{first['library']}.so")
    if A.device.type == "cuda":
        import tvm_ffi

        launch = tvm_ffi.load_module(path)[first["symbol"]]

        def call() -> Any:
            B = torch.empty((size,), dtype=torch.float32, device=A.device)
            launch(A, B)
            return B

        return call
    function = getattr(ctypes.CDLL(path), f"{first['symbol']}_kernel")
    sizes = [size] * (len(first["calls"]) - 2)
    function.argtypes = [ctypes.c_void_p, ctypes.c_void_p, *(ctypes.c_int32 for _ in sizes)]

    def call_c() -> Any:
        B = torch.empty((size,), dtype=torch.float32, device=A.device)
        function(A.data_ptr(), B.data_ptr(), *sizes)
        return B

    return call_c


def fresh(folder: Path, device: str) -> dict[str, float]:
    """Return the milliseconds of the import, the load and the first call: medians over fresh processes."""
    found, path = [], os.pathsep.join(filter(None, (str(common.ROOT), os.environ.get("PYTHONPATH"))))
    for _ in range(FRESH):
        command = [sys.executable, "-c", FIRST, str(folder), device]
        done = subprocess.run(
            command, check=True, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": path}
        )
        found.append(json.loads(done.stdout))
    return {name: round(1e3 * statistics.median(one[name] for one in found), 3) for name in found[0]}


def main() -> None:
    arguments = common.options(__doc__ or "", 300.0, target="c", rounds=400)
    on_cpu = arguments.target == "c"
    device = "cpu" if on_cpu else "cuda"
    settle = (lambda: None) if on_cpu else torch.cuda.synchronize
    kernel = double if on_cpu else double_on_gpu
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "double.bundle"
        found = tuned(kernel, arguments.target, folder, any_size=False)
        tuned(kernel, arguments.target, Path(name) / "any.bundle", any_size=True)
        bundle = atune.bundle.load(folder)
        any_size = atune.bundle.load(Path(name) / "any.bundle", on_miss="nearest")
        A, between = torch.randn(PROBLEMS[0], device=device), torch.randn(BETWEEN, device=device)
        result_kernel = found[0].kernel
        assert torch.equal(bundle(A), A * 2) and torch.equal(any_size(between), between * 2)
        calls: dict[str, Callable[[], Any]] = {
            "kernel's own": own_call(bundle, A),
            "bundle": lambda: bundle(A),
            "result.kernel": lambda: result_kernel(A),
            "any size: kernel's own": own_call(any_size, between),
            "any size: bundle": lambda: any_size(A),
            "any size: the nearest": lambda: any_size(between),
        }
        assert torch.equal(calls["kernel's own"](), A * 2)
        assert torch.equal(calls["any size: kernel's own"](), between * 2)
        gc.disable()
        samples = in_turn(calls, arguments.rounds, settle)
        gc.enable()
        once = fresh(folder, device)
    rows: list[list[Any]] = [["call", "ns a call", "over the kernel's own"]]
    results: dict[str, Any] = {"target": arguments.target, "rounds": arguments.rounds, "fresh": once}
    for name, values in samples.items():
        over = difference(samples, name, "any size: kernel's own" if name.startswith("any") else "kernel's own")
        rows.append([name, f"{statistics.median(values):.0f}", "{1:+.0f} ({0:+.0f}…{2:+.0f})".format(*over)])
        results[name] = {"ns": statistics.median(values), "over_kernel_ns": over}
    rows += [[f"fresh process: {name.removesuffix('_ms')}", f"{value} ms", ""] for name, value in once.items()]
    common.report(arguments, "bundle", rows, results)


if __name__ == "__main__":
    main()
