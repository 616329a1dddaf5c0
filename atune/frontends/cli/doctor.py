"""Tell what this machine can tune, what is missing, and what to do about it.

Imports no torch and makes no CUDA context. A separate process imports tilelang and lists the usable accelerators.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from atune.frontends.cli.help import Parser
from atune.frontends.cli.output import NO_WINNER, print_out
from atune.frontends.cli.parsing import add_command
from atune.model.device import parse_target
from atune.model.folders import cache_folder
from atune.model.requirements import REQUIRES
from atune.workers.system.resources import usable_cores

if TYPE_CHECKING:
    from atune.workers.system.terminal import Interrupts

NVML = "nvidia-ml-py"
"""The package that lists GPUs: the CPU is tuned without it."""
ACCELERATOR = "accelerator "
SURVEY = "atune.stages.accelerators.registry:survey"
"""Called in a process of its own."""
SURVEY_TIMEOUT_S = 60.0


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
    """Check Python, packages, compilers, GPUs, cores, the cache folder, the accelerators and the targets.

    The last two findings say which targets can be tuned.
    """
    checks = [
        _python(),
        *(_package(name) for name in REQUIRES if name != NVML),
        _gxx(),
        _nvcc(),
        *_gpus(),
        _cores(),
        _cache(),
    ]
    by_name = {check.name: check for check in checks}
    packages = [name for name in REQUIRES if name in by_name and by_name[name].found == "missing"]
    missing_c = packages + [n for n in ("Python", "g++", "cache folder") if not by_name[n].ok]
    missing_cuda = missing_c + [n for n in ("nvcc",) if not by_name[n].ok]
    gpus = [c for c in checks if c.name.startswith("GPU") and c.ok]
    if not gpus:
        missing_cuda.append("a GPU")
    if by_name["torch"].found.partition("+")[2].startswith("cpu"):
        missing_cuda.append("a torch with CUDA (this one is for the CPU only)")
    accelerators = [] if packages else _accelerators(*_survey_of(by_name["nvcc"].ok, gpus))
    return [*checks, *accelerators, _target("c", missing_c), _target("cuda", missing_cuda)]


def render(checks: Sequence[Check]) -> str:
    """Return `checks` as aligned text, each piece of advice below its finding."""
    width = max(len(check.name) for check in checks)
    lines = []
    for check in checks:
        without = "unused " if check.name.startswith(ACCELERATOR) else "missing"
        lines.append(f"{'ok     ' if check.ok else without}  {check.name:<{width}}  {check.found}")
        if check.advice:
            lines.append(f"{'':{width + 11}}{check.advice}")
    return "\n".join(lines)


def _python() -> Check:
    found = f"{'.'.join(map(str, sys.version_info[:3]))} ({sys.executable})"
    ok = sys.version_info >= (3, 11) and sys.platform == "linux"
    return Check("Python", ok, found, "" if ok else "atune needs Python 3.11 or newer on Linux")


def _package(name: str) -> Check:
    try:
        version = metadata.version(name)
    except metadata.PackageNotFoundError:
        return Check(name, False, "missing", f"pip install '{name}{REQUIRES[name]}'")
    low, high = map(_numbers, REQUIRES[name].split(","))
    tested = low <= _numbers(version.partition("+")[0]) < high
    advice = f"atune is tested with {name}{REQUIRES[name]}; if something fails, try one of these versions"
    return Check(name, True, version, "" if tested else advice)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", version)))


def _gxx() -> Check:
    return _compiler(
        "g++", shutil.which("g++"), "install a C++ compiler, for example: apt-get install g++", r"(\d+\.\d+[.\d]*)\s*$"
    )


def _nvcc() -> Check:
    homes = [os.environ[name] for name in ("CUDA_HOME", "CUDA_PATH") if os.environ.get(name)]
    places = [str(Path(home, "bin", "nvcc")) for home in (*homes, "/usr/local/cuda")]
    path = next((found for place in (*places[:-1], "nvcc", places[-1]) if (found := shutil.which(place))), None)
    advice = "needed for CUDA only: install the CUDA toolkit; if nvcc is not on PATH, set CUDA_HOME to its folder"
    check = _compiler("nvcc", path, advice, r"release [\d.]+, V([\d.]+)")
    if homes and check.ok and not Path(homes[0], "bin", "nvcc").exists():
        advice = f"CUDA_HOME is {homes[0]}, which has no bin/nvcc: correct it or unset it"
        return msgspec.structs.replace(check, advice=advice)
    return check


def _compiler(name: str, path: str | None, advice: str, pattern: str) -> Check:
    if path is None:
        return Check(name, False, "missing", advice)
    try:
        output = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=20, check=True).stdout
    except (OSError, subprocess.SubprocessError) as error:
        return Check(name, False, f"{path} does not run: {error}", advice)
    version = re.search(pattern, output, re.MULTILINE)
    return Check(name, True, f"{version.group(1) if version else output.splitlines()[0]} ({path})")


def _gpus() -> list[Check]:
    if importlib.util.find_spec("pynvml") is None:  # the package nvidia-ml-py
        return [Check("GPU", False, f"cannot be listed without {NVML}", f"pip install '{NVML}{REQUIRES[NVML]}'")]
    gpus = importlib.import_module("atune.stages.session.devices").visible_gpus()
    if not gpus:
        advice = "needed for CUDA only: the CPU (--target c) can be tuned without a GPU"
        among = " among CUDA_VISIBLE_DEVICES" if "CUDA_VISIBLE_DEVICES" in os.environ else ""
        return [Check("GPU", False, f"NVML finds none{among}", advice)]
    return [Check(f"GPU {gpu.id}", True, f"{gpu.name}, {gpu.memory_bytes / 2**30:.0f} GiB, {gpu.arch}") for gpu in gpus]


def _cores() -> Check:
    allowed, usable = len(os.sched_getaffinity(0)), len(usable_cores())
    found = f"{usable} usable" + (f" (the cgroup's quota; {allowed} by affinity)" if usable < allowed else "")
    advice = "with one core, compiling disturbs measurements on the CPU" if usable < 2 else ""
    return Check("cores", True, found, advice)


def _cache() -> Check:
    folder = cache_folder()
    there = next(place for place in (folder, *folder.parents) if place.exists())
    if not (there.is_dir() and os.access(there, os.W_OK | os.X_OK)):
        advice = "set ATUNE_CACHE_DIR to a writable folder"
        return Check("cache folder", False, f"{folder} cannot be written", advice)
    free = shutil.disk_usage(there).free / 2**30
    advice = "less than 1 GiB is free, and compiled kernels may not fit: free some space" if free < 1 else ""
    return Check("cache folder", True, f"{folder} ({free:.0f} GiB free)", advice)


def _survey_of(nvcc: bool, gpus: Sequence[Check]) -> tuple[str, ...]:
    """Return the target whose accelerators count here, for `SURVEY`: the CPU if nothing here compiles CUDA."""
    if not nvcc:
        return ("c", "")
    found = re.search(r"\bsm_\w+", gpus[0].found) if gpus else None
    target = parse_target(found.group()) if found else None
    return ("cuda",) if target is None else (target.kind, target.arch)


_ASK = """
import importlib, json, sys
path, module, name, *where = json.loads(sys.argv[1])
sys.path[:] = path
print(json.dumps(getattr(importlib.import_module(module), name)(*where)))
"""


def _accelerators(*where: str) -> list[Check]:
    """Return one finding per accelerator. `where`: the target's kind and arch."""
    from atune.workers.processes.server import server_env  # needs packages that may be missing

    module, _, name = SURVEY.partition(":")
    command = [sys.executable, "-c", _ASK, json.dumps([[os.path.abspath(p) for p in sys.path], module, name, *where])]
    environment = {**os.environ, **server_env()}
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=SURVEY_TIMEOUT_S, check=True, env=environment
        )
        active, unused = json.loads(done.stdout.splitlines()[-1])  # tilelang may print something before
    except (OSError, subprocess.SubprocessError, ValueError, IndexError) as error:
        lines = (getattr(error, "stderr", "") or str(error)).strip().splitlines()
        advice = "use --accelerate off to tune without it"
        return [Check(f"{ACCELERATOR}any", False, f"cannot be checked: {lines[-1]}", advice)]
    versions = dict(one.rpartition("@")[::2] for one in active)
    used = [Check(f"{ACCELERATOR}{name}", True, f"version {version}") for name, version in versions.items()]
    return [*used, *(Check(f"{ACCELERATOR}{name}", False, why) for name, why in unused.items())]


def _target(kind: str, missing: Sequence[str]) -> Check:
    if missing:
        return Check(f"target {kind}", False, "cannot be tuned here", f"it lacks {', '.join(missing)}")
    return Check(f"target {kind}", True, "can be tuned here")
