"""Decides whether a resident server fits a program, and what its sessions take over. Imports nothing heavy.

A session gets the program's whole environment. Everything that the server's imports read must be equal: the locations
of packages, and their variables. So must everything that one process cannot take over from another.
"""

from __future__ import annotations

import os
import re
import resource
import shutil
import signal
import sys
from collections.abc import Mapping
from contextlib import suppress
from importlib.machinery import PathFinder
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import atune
from atune.system.versions import VERSIONED
from atune.version import __version__

Facts = dict[str, str]
"""Facts that must be equal, by their names in messages."""
Stamps = dict[str, tuple[int, int] | None]
"""Modification time (ns) and size of files, by path; None for a missing file."""

PACKAGES = ("atune", "torch", "tilelang", "tvm_ffi", "numpy", "anyio", "msgspec")
COMPILERS = ("nvcc", "hipcc", "g++", "gcc", "c++", "cc")
"""Programs that stand for PATH in the comparison, because importing tilelang searches it for the toolkit."""
_READ = re.compile(
    r"(?:CUDA|CUDNN|CUTLASS|NVIDIA|NVCC|NVRTC|NVSHMEM|ROCM|HIP|TILELANG|TL|TVM|TORCH|TORCHINDUCTOR|PYTORCH|TRITON"
    r"|PYTHON|LD|LC|OMP|GOMP|KMP|MKL|OPENBLAS|BLIS|NUMEXPR|MALLOC|GLIBC|LLVM)_?[A-Z0-9_]*"
    r"|CC|CXX|HOME|LANG|LANGUAGE|SKIP_LOADING_TILELANG_SO|TMPDIR|XDG_CACHE_HOME"
)
"""Environment variables that importing Python, torch, tilelang and their libraries may read.

tilelang 0.1.15 reads them in tilelang/env.py. atune reads its own variables later, from the session's environment.
"""


def facts(env: Mapping[str, str]) -> Facts:
    """Return this program's facts that must be equal. `env`: the environment of its fork server."""
    found = {
        "Python": f"{sys.executable} {sys.prefix} {sys.version}",
        "atune": __version__,
        "user and groups": f"{os.getresuid()} {os.getresgid()} {sorted(os.getgroups())}",
        "namespaces": " ".join(_link(f"/proc/self/ns/{name}") for name in ("mnt", "pid", "user", "net", "ipc", "uts")),
        "root folder": _link("/proc/self/root"),
        "cgroup with limits": limiting_cgroups(),
        "compilers on PATH": " ".join(filter(None, (shutil.which(one, path=env.get("PATH")) for one in COMPILERS))),
    }
    found |= {f"the place of {name}": _origin(name) for name in PACKAGES}
    return found | {name: value for name, value in env.items() if _READ.fullmatch(name)}


def difference(here: Facts, *there: Facts) -> str:
    """Say how a server differs from a program, `here`; empty if it does not.

    `there`: the server's facts before and after it imported. Importing tilelang sets variables. A program that has
    imported it has the facts of afterwards.
    """
    names = sorted(set(here).union(*there))
    differing = [name for name in names if here.get(name) not in [facts.get(name) for facts in there]]
    return f"it was started with another {', another '.join(differing[:4])}" if differing else ""


def packages() -> dict[str, str]:
    """Return the packages and modules that this process has imported: files by name, without Python's own."""
    own = {*sys.stdlib_module_names, "__main__", "__mp_main__"}
    named = {name: getattr(module, "__file__", None) for name, module in list(sys.modules.items()) if "." not in name}
    return {
        name: file for name, file in named.items() if name not in own and isinstance(file, str) and os.path.isabs(file)
    }


def shadowed(imported: Mapping[str, str], path: list[str]) -> str:
    """Say which of the `imported` packages the search path `path` would load from another place; empty if none.

    A package that no entry of `path` has, such as an editable install, is not checked.
    """
    for name, file in imported.items():
        spec = PathFinder.find_spec(name, path)
        if spec is not None and spec.has_location and os.path.realpath(spec.origin or "") != os.path.realpath(file):
            return f"the program would import {name} from {spec.origin}"
    return ""


def stamps() -> Stamps:
    """Return stamps of the files that tell whether the imported packages are still the installed ones."""
    from importlib import metadata  # takes 10 ms, and only the server needs it

    own = Path(atune.__file__).parent
    files = {*packages().values(), *(str(path) for path in own.rglob("*.py"))}
    for name in VERSIONED:
        with suppress(metadata.PackageNotFoundError):
            package = metadata.distribution(name)
            folder = f"{name.replace('-', '_')}-{package.version}.dist-info"
            files.add(str(package.locate_file(f"{folder}/METADATA")))
    return {file: _stamp(file) for file in sorted(files)}


def changed(before: Stamps) -> str:
    """Say which file has changed since `before`; empty if none has. A new module of atune counts, too."""
    own = Path(atune.__file__).parent
    new = (str(path) for path in own.rglob("*.py") if str(path) not in before)
    other = next((file for file, stamp in before.items() if _stamp(file) != stamp), None) or next(new, None)
    return f"{other} was changed since it was started" if other else ""


def surroundings(env: Mapping[str, str]) -> dict[str, Any]:
    """Return everything that a session takes over from this program except its working folder. `env`: its
    environment."""
    mask = os.umask(0o077)
    os.umask(mask)
    return {
        "env": dict(env),
        "umask": mask,
        "limits": {name: resource.getrlimit(getattr(resource, name)) for name in _LIMITS},
        "cpus": sorted(os.sched_getaffinity(0)),
        "nice": os.getpriority(os.PRIO_PROCESS, 0),
        "ignored": [int(one) for one in _resettable() if signal.getsignal(one) is signal.SIG_IGN],
    }


def take_over(program: Mapping[str, Any]) -> str:
    """Give this process the `surroundings` of a program, except the environment. Say what fails; empty if nothing
    does."""
    for name, limit in program["limits"].items():
        kind = getattr(resource, name)
        if resource.getrlimit(kind) != tuple(limit):
            try:
                resource.setrlimit(kind, tuple(limit))
            except (ValueError, OSError):
                return f"it may not have the program's limit {name}"
    try:
        os.sched_setaffinity(0, program["cpus"])
        os.setpriority(os.PRIO_PROCESS, 0, program["nice"])
    except OSError as error:
        return f"it may not have the program's processors and niceness ({error.strerror})"
    os.umask(program["umask"])
    for one in _resettable():
        signal.signal(one, signal.SIG_IGN if int(one) in program["ignored"] else signal.SIG_DFL)
    return ""


def limiting_cgroups() -> str:
    """Return this process's cgroups that limit memory or processors; empty if none does.

    In cgroup v1, where each controller has its own tree, every group except the root counts.
    """
    found = []
    with suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers.startswith("name=") or path == "/":
                continue
            if controllers or _limits(path):
                found.append(line.partition(":")[2])
    return " ".join(found)


def _limits(path: str) -> bool:
    """Tell whether cgroup v2 `path`, or one of its parents, limits memory or processors."""
    group = Path("/sys/fs/cgroup", path.lstrip("/"))
    for folder in (group, *group.parents):
        for name in ("memory.max", "memory.high", "cpu.max", "cpuset.cpus"):
            with suppress(OSError):
                if (folder / name).read_text().split()[:1] not in ([], ["max"]):
                    return True
        if folder == Path("/sys/fs/cgroup"):
            break
    return False


def _origin(name: str) -> str:
    """Return where this program imports a package from, or would; empty if it is missing."""
    with suppress(ImportError, ValueError, AttributeError):
        spec = find_spec(name)
        if spec is not None:
            return os.path.realpath(spec.origin or next(iter(spec.submodule_search_locations or ()), ""))
    return ""


def _stamp(file: str) -> tuple[int, int] | None:
    with suppress(OSError):
        status = os.stat(file)
        return status.st_mtime_ns, status.st_size
    return None


def _link(path: str) -> str:
    with suppress(OSError):
        return os.readlink(path)
    return ""


def _resettable() -> list[signal.Signals]:
    """Return the signals whose handling child processes inherit, except those that Python sets itself."""
    kept = {signal.SIGKILL, signal.SIGSTOP, signal.SIGPIPE, signal.SIGXFSZ}
    return [one for one in signal.Signals if one not in kept]


_LIMITS = sorted(name for name in dir(resource) if name.startswith("RLIMIT_") and name != "RLIMIT_OFILE")
