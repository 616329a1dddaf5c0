"""Tell what this machine can tune, what is missing, and what to do about it. Each target compiles and runs a kernel.

This process imports neither tilelang nor torch, and makes no CUDA context.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from atune.frontends.cli.output import NO_WINNER, print_out
from atune.frontends.cli.parsing import Parser, add_command
from atune.model.folders import cache_folder
from atune.model.requirements import REQUIRES, is_tested

if TYPE_CHECKING:
    from atune.workers.system.terminal import Interrupts

NVML = "nvidia-ml-py"
"""The package that lists GPUs: the CPU is tuned without it."""


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
"""What a user's script does: its kernel is sent to workers, which lower, compile and run it."""
ARCH = "sm_80"
"""Compiled for where there is no GPU: every nvcc that tilelang supports knows it."""
SCRIPT_S = 300


class Check(msgspec.Struct, frozen=True):
    """One finding. `found`: what is there; `advice`: what to do if `ok` is false."""

    name: str
    ok: bool
    found: str
    advice: str = ""


def add_commands(commands: Any, shown: Parser) -> None:
    """Add ``doctor``. `shown` holds the options that all commands share."""
    add_command(commands, shown, "doctor", _doctor, "Show what this machine can tune and what is missing")


def _doctor(arguments: argparse.Namespace, interrupts: Interrupts) -> int:
    checks = examine()
    ready = any(check.ok for check in checks if check.name.startswith("target "))
    if arguments.json:
        print_out(json.dumps({"ok": ready, "checks": msgspec.to_builtins(checks)}))
    else:
        print_out(render(checks))
    return 0 if ready else NO_WINNER


def examine() -> list[Check]:
    """Check Python, packages, compilers, GPUs and the cache folder, and try the targets, which the last two are."""
    checks = [Check("Python", True, f"{platform.python_version()} ({sys.executable})")]
    checks += [*(_package(name) for name in REQUIRES if name != NVML), _gxx(), _nvcc(), *_gpus(), _cache()]
    by_name = {check.name: check for check in checks}
    missing = [check.name for check in checks if not check.ok and check.name not in ("nvcc", "GPU")]
    without_gpu = ""
    if "GPU" in by_name:
        without_gpu = "it lacks a GPU"
    elif by_name["torch"].found.partition("+")[2].startswith("cpu"):
        without_gpu = "it lacks a torch with CUDA (this one is for the CPU only)"
    of_cuda = missing + ["nvcc"] * (not by_name["nvcc"].ok)
    return [*checks, _target("c", missing), _target("cuda", of_cuda, without_gpu)]


def render(checks: Sequence[Check]) -> str:
    """Return `checks` as aligned text, each piece of advice below its finding."""
    width = max(len(check.name) for check in checks)
    lines = []
    for check in checks:
        lines.append(f"{'ok     ' if check.ok else 'missing'}  {check.name:<{width}}  {check.found}")
        lines += [f"{'':{width + 11}}{line}" for line in check.advice.splitlines()]
    return "\n".join(lines)


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
    """Have another process import tilelang, and say whether it has all that atune takes from it."""
    code = "from atune.stages.tilelang import untested; print(untested())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    if done.returncode == 0:
        return Check("tilelang", True, version, done.stdout.strip())
    error = done.stderr.strip().rpartition("\n")[2]
    return Check("tilelang", False, f"{version}, which cannot be used", error.removeprefix("atune.errors.UsageError: "))


def _gxx() -> Check:
    return _compiler("g++", "g++", "install a C++ compiler, for example: apt-get install g++")


def _nvcc() -> Check:
    homes = [os.environ[name] for name in ("CUDA_HOME", "CUDA_PATH") if os.environ.get(name)]
    places = [*(str(Path(home, "bin", "nvcc")) for home in homes), "nvcc", "/usr/local/cuda/bin/nvcc"]
    path = next(filter(shutil.which, places), "nvcc")
    advice = "needed for CUDA only: install the CUDA toolkit; if nvcc is not on PATH, set CUDA_HOME to its folder"
    return _compiler("nvcc", path, advice)


def _compiler(name: str, command: str, advice: str) -> Check:
    if (path := shutil.which(command)) is None:
        return Check(name, False, "missing", advice)
    try:
        output = subprocess.run([path, "--version"], capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        return Check(name, False, f"{path} does not run: {error}", advice)
    version = re.search(r"\d+\.\d+\.\d+", output)
    return Check(name, True, f"{version[0] if version else 'some version'} ({path})")


def _gpus() -> list[Check]:
    if importlib.util.find_spec("pynvml") is None:  # the package nvidia-ml-py
        return [Check("GPU", False, f"cannot be listed without {NVML}", f"pip install '{NVML}{REQUIRES[NVML]}'")]
    gpus = importlib.import_module("atune.stages.session.session").visible_gpus()
    if not gpus:
        advice = "needed for CUDA only: the CPU (--target c) can be tuned without a GPU"
        among = " among CUDA_VISIBLE_DEVICES" if "CUDA_VISIBLE_DEVICES" in os.environ else ""
        return [Check("GPU", False, f"NVML finds none{among}", advice)]
    return [Check(f"GPU {gpu.id}", True, f"{gpu.name}, {gpu.memory_bytes / 2**30:.0f} GiB, {gpu.arch}") for gpu in gpus]


def _cache() -> Check:
    folder = cache_folder()
    there = next(place for place in (folder, *folder.parents) if place.exists())
    if not (there.is_dir() and os.access(there, os.W_OK | os.X_OK)):
        advice = "set ATUNE_CACHE_DIR to a writable folder"
        return Check("cache folder", False, f"{folder} cannot be written", advice)
    return Check("cache folder", True, f"{folder} ({shutil.disk_usage(there).free / 2**30:.0f} GiB free)")


def _target(kind: str, missing: Sequence[str], without_gpu: str = "") -> Check:
    """Check a target, unless something is `missing`. `without_gpu`: why a kernel for it can only be compiled."""
    name = f"target {kind}"
    if missing:
        return Check(name, False, "cannot be tuned here", f"it lacks {', '.join(missing)}")
    if failed := _failed(ARCH if without_gpu else kind):
        return Check(name, False, "a kernel of a few lines fails", failed)
    if without_gpu:
        return Check(name, False, "cannot be tuned here; a kernel compiles", without_gpu)
    return Check(name, True, "can be tuned here: a kernel compiled and ran")


def _failed(target: str) -> str:
    """Run the script, apart from the user's cache. Returns what failed; empty where nothing did."""
    with tempfile.TemporaryDirectory(prefix="atune-doctor-") as folder:
        script = Path(folder, "double.py")
        script.write_text(SCRIPT)
        command = [sys.executable, str(script), target, str(Path(__file__).parents[3])]
        env = {**os.environ, "ATUNE_CACHE_DIR": folder}
        try:
            subprocess.run(command, capture_output=True, text=True, timeout=SCRIPT_S, env=env, check=True)
        except subprocess.CalledProcessError as error:
            lines = [line for line in error.stderr.splitlines() if "atune show" not in line]  # its journal is gone
            raised = max((i for i, line in enumerate(lines) if line[:1].strip()), default=0)
            return "\n".join(lines[raised:]) or str(error)
        except subprocess.TimeoutExpired as error:
            return str(error)
    return ""
