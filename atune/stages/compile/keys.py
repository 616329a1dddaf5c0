"""Keys of the inputs of lowering and compiling: equal keys, equal machine code."""

from __future__ import annotations

import functools
import hashlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from importlib import metadata
from typing import Any

import msgspec

FORMAT = 2
"""Format version of the artifact store's entries: another format, another key."""
_DECISIVE = (
    "CPATH", "C_INCLUDE_PATH", "CPLUS_INCLUDE_PATH", "CUDA_HOME", "CUDA_PATH", "NVCC_APPEND_FLAGS",
    "NVCC_PREPEND_FLAGS", "TL_TEMPLATE_PATH", "TL_CUTLASS_PATH", "GCC_EXEC_PREFIX", "COMPILER_PATH",
)  # fmt: skip
"""Environment variables with sources or flags for compilers and tilelang."""
_LOWERS = re.compile(r"(TILELANG_(?!CACHE_DIR|TMP_DIR|DISABLE_CACHE)|TL_|TVM_)")
"""Environment variables that may change tilelang's output for a kernel."""
_USERS_FILES = re.compile(r"(^|\s)(-I|-i[a-z]+|--include|-B|@)")
_USERS_INCLUDE = re.compile(r'^\s*#\s*include\s+"', re.MULTILINE)


def digest(value: Any) -> str:
    """Return the SHA-256 of `value` as JSON, shortened to 128 bits."""
    return hashlib.sha256(msgspec.json.encode(value, order="deterministic", enc_hook=str)).hexdigest()[:32]


def lowering_environment() -> list[tuple[str, str]]:
    """Return the environment variables that lowering may depend on."""
    return sorted((name, value) for name, value in os.environ.items() if _LOWERS.match(name))


@functools.cache
def toolchain(kind: str) -> tuple[str, ...]:
    """Return what else decides the machine code: versions, the compilers' files, and the CPU for ``-march=native``."""
    import tilelang

    found = [tilelang.__version__, str(sys.implementation.cache_tag)]
    found += [f"{name}={os.environ.get(name)}" for name in _DECISIVE]
    compilers = [shutil.which(name) for name in ("g++", "gcc", "c++")]
    if kind != "c":
        from tilelang.contrib.nvcc import get_nvcc_compiler

        nvcc = get_nvcc_compiler()
        compilers.append(shutil.which(nvcc))  # it may be a script before the real compiler, which tells its version
        found.append(subprocess.run([nvcc, "--version"], capture_output=True, text=True).stdout)
    for path in compilers:
        if path is not None:
            status = os.stat(os.path.realpath(path))
            found.append(f"{path} {status.st_size} {status.st_mtime_ns}")
    if kind == "c":
        with open("/proc/cpuinfo") as info:
            found += sorted({line for line in info if line.startswith(("model name", "flags"))})
    return tuple(found)


def version(package: str) -> str:
    """Return a package's version; empty if it is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def preamble(source: str) -> list[str]:
    """Return the text before the kernels except system includes: two such texts may not fit together."""
    before = source.partition("_kernel(")[0]
    return [
        line
        for line in before.splitlines()
        if not line.startswith(("#include <", "//")) and "atune_kernel_" not in line
    ]


def includes_users_files(source: str, flags: Sequence[str] | None) -> bool:
    """Tell whether user files decide the code. Then no key covers it."""
    return bool(_USERS_FILES.search(" ".join(flags or ())) or _USERS_INCLUDE.search(source))
