"""``atune doctor``: compile and run a kernel for each target, and give advice about everything that is missing.

This process imports neither tilelang nor torch, and creates no CUDA context.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import msgspec

from atune.frontends.cli.output import NO_WINNER, print_out
from atune.model.requirements import REQUIRES, is_tested
from atune.workers.terminal import Interrupts

SCRIPT = """
import sys

import tilelang.language as T

sys.path.append(sys.argv[2])
import atune


def double(n: int = 4096, block: int = 256):
    @T.prim_func
    def main(A: T.Tensor((n,), "float32"), B: T.Tensor((n,), "float32")):
        with T.Kernel(T.ceildiv(n, block)) as bx:
            for i in T.Parallel(block):
                B[bx * block + i] = A[bx * block + i] * 2.0

    return main


if __name__ == "__main__":
    target = sys.argv[1]
    if target in ("c", "cuda"):
        workload = atune.Workload(double, [{"block": 256}], reference=lambda A: A * 2)
        atune.run(workload, target=target, progress=False)
    else:
        atune.compile_all(double, [{}], target=target)
"""
"""A script as a user would write it. Workers lower, compile and run the kernel of the script."""
ARCH = "sm_80"
"""The architecture to compile for if there is no GPU. Every nvcc that tilelang supports can compile for ``sm_80``."""


class Check(msgspec.Struct, frozen=True):
    """The outcome of a check. `found`: a version or a description. `advice`: what the user can do."""

    name: str
    ok: bool
    found: str
    advice: str = ""


def doctor_command(arguments: argparse.Namespace, interrupts: Interrupts) -> int:
    checks = list[Check]()
    for check in examine():  # prints each outcome immediately, because trying a target takes long
        checks.append(check)
        if not arguments.json:
            print_out(render(check))
    ready = any(check.ok for check in checks if check.name.startswith("target "))
    if arguments.json:
        print_out(json.dumps({"ok": ready, "checks": msgspec.to_builtins(checks)}))
    return 0 if ready else NO_WINNER


def examine() -> Iterator[Check]:
    """Check the packages and the GPUs, then try the two targets."""
    packages = [Check("Python", True, f"{platform.python_version()} ({sys.executable})"), *map(_package, REQUIRES)]
    yield from packages
    missing = [check.name for check in packages if not check.ok]
    if missing:
        lacking = f"this environment lacks {', '.join(missing)}"
        yield from (Check(f"target {kind}", False, "cannot be tuned here", lacking) for kind in ("c", "cuda"))
        return
    gpus = importlib.import_module("atune.stages.gpu").visible_gpus()
    for gpu in gpus:
        yield Check(f"GPU {gpu.id}", True, f"{gpu.name}, {gpu.memory_bytes / 2**30:.0f} GiB, {gpu.arch}")
    yield _target("c", "c")
    yield _target("cuda", "cuda" if gpus else ARCH)


def render(check: Check) -> str:
    """Return `check` as a line of text, aligned with the lines of other checks, and the advice as lines below."""
    width = max(map(len, (*REQUIRES, "target cuda")))
    line = f"{'ok     ' if check.ok else 'missing'}  {check.name:<{width}}  {check.found}"
    return "\n".join([line, *(f"{'':{width + 11}}{advice}" for advice in check.advice.splitlines())])


def _package(name: str) -> Check:
    try:
        version = metadata.version(name)
    except metadata.PackageNotFoundError:
        return Check(name, False, "missing", f"pip install '{name}{REQUIRES[name]}'")
    if is_tested(name, version):
        return Check(name, True, version)
    if name == "tilelang":
        return _untested_tilelang(version)
    advice = f"atune is tested with {name}{REQUIRES[name]}; if something fails, try one of these versions"
    return Check(name, True, version, advice)


def _untested_tilelang(version: str) -> Check:
    """Check in another process whether this tilelang has every name that atune uses."""
    code = "from atune.stages.tilelang import untested; print(untested())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    if done.returncode == 0:
        return Check("tilelang", True, version, done.stdout.strip())
    error = done.stderr.strip().rpartition("\n")[2]
    return Check("tilelang", False, f"{version}, unusable", error.removeprefix("atune.errors.UsageError: "))


def _target(kind: str, tried: str) -> Check:
    """Run the script for the target `tried`, without using the user's cache, and return the outcome."""
    name, failed = f"target {kind}", ""
    with tempfile.TemporaryDirectory(prefix="atune-doctor-") as folder:
        script = Path(folder, "double.py")
        script.write_text(SCRIPT)
        command = [sys.executable, str(script), tried, str(Path(__file__).parents[3])]
        env = {**os.environ, "ATUNE_CACHE_DIR": folder}
        try:
            subprocess.run(command, capture_output=True, text=True, timeout=300, env=env, check=True)
        except subprocess.CalledProcessError as error:
            lines = [line for line in error.stderr.splitlines() if "atune show" not in line]  # the journal is temporary
            raised = max((i for i, line in enumerate(lines) if line[:1].strip()), default=0)
            failed = "\n".join(lines[raised:]).removeprefix("atune.errors.") or str(error)
        except subprocess.TimeoutExpired as error:
            failed = str(error)
    if failed:
        return Check(name, False, "a small kernel fails", failed)
    if tried == ARCH:
        why = importlib.import_module("atune.stages.gpu").no_gpu_reason()
        return Check(name, False, "cannot be tuned here; a kernel compiles", f"it lacks a GPU: {why}")
    return Check(name, True, "can be tuned here: a kernel compiled and ran")
