"""The format of tilelang's device sources, and the locations of the headers that they include."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

GUESS = (
    "instruction/wgmma.h", "intrin.h", "barrier.h", "copy_sm90.h", "reduce.h", "scan.h", "ldsm.h",
    "threadblock_swizzle.h", "debug.h",
)  # fmt: skip
"""tilelang's headers that most kernels include, in its order. A kernel that includes fewer compiles to the same
code."""
GUESS_BEFORE_HOPPER = ("instruction/mma.h", "intrin.h", "copy.h", *GUESS[4:])
MICROSOFT = """\
#if defined(_MSC_VER) && !defined(__clang__) && _MSC_VER < 1940
#define _tl_orig_alignas alignas
#define alignas(N) _tl_orig_alignas((N) <= 64 ? (N) : 64)
#include <cuda.h>
#undef alignas
#define alignas _tl_orig_alignas
#endif
"""
"""The text that tilelang writes before its headers, for Microsoft's compiler."""
_FALLBACKS = "#ifdef ENABLE_BF16\n#include <tl_templates/cuda/cuda_bf16_fallbacks.cuh>\n#endif\n"
"""The text that it writes after them, for a macro that only a user's flags can define."""
_INCLUDE = re.compile(r"[ \t]*#[ \t]*include[ \t]*(<[^>\n]*>)[ \t]*")
_GUARD = re.compile(r"[ \t]*#[ \t]*(?:ifndef[ \t]+\w+|define[ \t]+\w+|endif.*|pragma[ \t]+once)[ \t]*")


class Flavour(msgspec.Struct, frozen=True):
    """Facts that a compiler's options depend on."""

    arch: str
    fast_math: bool = False


def for_nvcc(pass_configs: dict[str, Any]) -> str:
    """Say why only nvcc can do the compile that tilelang would request; empty if others can."""
    if any(os.environ.get(name) for name in ("NVCC_APPEND_FLAGS", "NVCC_PREPEND_FLAGS")):
        return "NVCC_APPEND_FLAGS and NVCC_PREPEND_FLAGS are for nvcc"
    if os.environ.get("TILELANG_VERBOSE", "0").lower() in ("1", "true", "yes", "on"):
        return "verbose asks for ptxas' figures, which only nvcc prints"
    if pass_configs.get("tl.device_compile_flags"):
        return "compile flags are for nvcc"
    return "register levels are for nvcc" if pass_configs.get("tl.ptxas_register_usage_level") is not None else ""


def guess(arch: str) -> tuple[str, ...]:
    """Return the headers that most kernels for `arch` include, ``<file>`` each."""
    hopper = int(re.sub(r"\D", "", arch) or 0) >= 90
    return tuple(f"<tl_templates/cuda/{name}>" for name in (GUESS if hopper else GUESS_BEFORE_HOPPER))


class Parts(NamedTuple):
    """A source as tilelang prints it: text of the user's, includes, and the rest on its original lines.

    `first` is empty, or declarations under include guards.
    """

    first: str
    includes: tuple[str, ...]
    """Headers, ``<file>`` each."""
    rest: str


def parts(source: str) -> Parts:
    """Take `source` apart. Raises `ValueError`, which says how, if it has another form."""
    before, found, after = source.partition(MICROSOFT)
    if not found:
        before, after = "", source
    first, includes = "", []
    if all(not line.strip() or _INCLUDE.fullmatch(line) for line in before.splitlines()):
        after = before + "\n" * found.count("\n") + after
    else:
        first = before
        for line in first.splitlines():
            if line.lstrip().startswith("#") and not _GUARD.fullmatch(line):
                raise ValueError(f"it has {line.strip()!r} before tilelang's headers")
        if "ENABLE_BF16" in first:
            raise ValueError("it has ENABLE_BF16 before tilelang's headers")
        after = "\n" * (before + found).count("\n") + after
    after = after.replace(_FALLBACKS, "\n" * _FALLBACKS.count("\n"), 1)
    lines = after.splitlines(keepends=True)
    for n, line in enumerate(lines):
        if match := _INCLUDE.fullmatch(line.rstrip("\n")):
            includes.append(match[1])
            lines[n] = "\n"
        elif line.strip():
            break
    rest = "".join(lines)
    if match := re.search(r"^[ \t]*#[ \t]*include.*", rest, re.MULTILINE):
        raise ValueError(f"it has {match[0].strip()!r} among its kernels")
    return Parts(first, tuple(dict.fromkeys(includes)), rest)


def flavour_of(arch: str, pass_configs: dict[str, Any]) -> Flavour:
    return Flavour(arch, bool(pass_configs.get("tl.enable_fast_math")))


def flags_config(flags: Sequence[str] | None) -> dict[str, Any]:
    """Return the pass configuration that passes compile flags to nvcc."""
    return {"tl.device_compile_flags": list(flags)} if flags else {}
