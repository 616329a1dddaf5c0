"""Registers, stack and spills of twenty kernels, as `atune explain` tells them and as ``ptxas -v`` does by itself.

python bench/registers.py

Compiles for sm_90a; needs nvcc and no GPU. It writes bench/results/registers.json, and fails where any figure differs.
For the second column nvcc compiles the source that `atune explain --source` prints, with ``-Xptxas -v``.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
OUT = ROOT / "bench" / "results" / "registers.json"
GEMM, SOFTMAX, WEIGHTED = (
    "examples/gemm.py:WORKLOAD",
    "examples/softmax.py:WORKLOAD",
    "tests/layout_kernels.py:WEIGHTED",
)
KERNELS = [
    (WEIGHTED, "rows=128"), (WEIGHTED, "rows=64"), (SOFTMAX, ""),
    *((GEMM, f"block_M={m},block_N={n},block_K={k},num_stages={s},threads={t}") for m, n, k, s, t in (
        (64, 64, 32, 0, 128), (64, 64, 64, 2, 128), (64, 128, 32, 2, 128), (64, 128, 64, 3, 256),
        (128, 64, 32, 2, 128), (128, 128, 32, 0, 128), (128, 128, 32, 2, 128), (128, 128, 64, 3, 256),
        (128, 128, 64, 2, 128), (128, 256, 32, 2, 128), (128, 256, 64, 3, 256), (256, 64, 32, 2, 128),
        (256, 128, 32, 2, 128), (256, 128, 64, 3, 256), (256, 256, 32, 0, 128), (256, 256, 32, 2, 128),
        (256, 256, 64, 2, 256),
    )),
]  # fmt: skip
NAMES = ("registers", "stack_bytes", "spill_bytes", "spill_load_bytes")


def explained(workload: str, config: str) -> dict[str, Any]:
    """Return what `atune explain --json --source` says of a configuration."""
    command = [sys.executable, "-m", "atune", "explain", workload, "--target", "sm_90a", "--json", "--source"]
    command += ["--config", config] if config else []
    paths = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH", ""))))
    done = subprocess.run(command, cwd=ROOT, env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"{workload} {config}: {done.stderr}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def binary(source: str) -> tuple[bytes, str]:
    """Return the binary that nvcc makes of `source` for sm_90a, and what ``ptxas -v`` says meanwhile."""
    import tilelang
    from tilelang.contrib.nvcc import get_nvcc_compiler
    from tilelang.env import CUTLASS_INCLUDE_DIR, TILELANG_TEMPLATE_PATH

    assert tilelang
    with tempfile.TemporaryDirectory() as folder:
        file, made = Path(folder, "kernel.cu"), Path(folder, "kernel.cubin")
        file.write_text(source)
        command = [get_nvcc_compiler(), "-cubin", "-O3", "-std=c++17", "-lineinfo", "-w", "-Xptxas=-v", "-gencode"]
        command += ["arch=compute_90a,code=sm_90a", f"-I{TILELANG_TEMPLATE_PATH}", f"-I{CUTLASS_INCLUDE_DIR}"]
        done = subprocess.run([*command, str(file), "-o", str(made)], capture_output=True, text=True)
        said = done.stderr + done.stdout
        if done.returncode != 0:
            raise RuntimeError(said[-2000:])
        return made.read_bytes(), said


def of_ptxas(source: str) -> dict[str, int]:
    """Return the same figures from nvcc's own run over `source`."""
    _, said = binary(source)
    registers = max(map(int, re.findall(r"Used (\d+) registers", said)))
    frames = re.findall(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", said)
    return dict(zip(NAMES, (registers, *map(int, max(frames))), strict=True))


def compared(kernel: tuple[str, str]) -> dict[str, Any]:
    """Return one row of the table."""
    found = explained(*kernel)
    own, theirs = {name: found[name] for name in NAMES}, of_ptxas(found["source"])
    return {"workload": kernel[0], "config": kernel[1], "explain": own, "ptxas": theirs, "equal": own == theirs}


def main() -> int:
    """Write the table. The exit status is 1 where a row differs."""
    with ThreadPoolExecutor(2) as pool:
        rows = list(pool.map(compared, KERNELS))
    OUT.write_text(json.dumps({"target": "sm_90a", "rows": rows}, indent=1) + "\n")
    for row in rows:
        print("same" if row["equal"] else "DIFFERS", row["workload"], row["config"], row["explain"], row["ptxas"])
    return 0 if all(row["equal"] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
