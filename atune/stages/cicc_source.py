"""tilelang's device sources for cicc: the headers that a source includes, and the Hopper instructions that it uses.

CUTLASS defines a structure for each shape and type of a wgmma instruction. CUTLASS defines a thousand structures in
77,000 lines, but a kernel uses only one or two structures. `without_instructions` writes copies of the headers without
these structures, and keeps all other lines in place. `definitions` returns the text of the instructions that a source
names. The copies and this text compile to the same bytes as the original headers, including line information. If a
kernel needs an instruction that its source does not name, cicc fails, and nvcc compiles the kernel.
"""

from __future__ import annotations

import functools
import os
import re
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

GUESS = (
    "instruction/wgmma.h", "intrin.h", "barrier.h", "copy_sm90.h", "reduce.h", "scan.h", "ldsm.h",
    "threadblock_swizzle.h", "debug.h",
)  # fmt: skip
"""Headers that most of tilelang's kernels include, in tilelang's order. A kernel that includes only some of these
headers compiles to the same code."""
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
"""Text for Microsoft's compiler, which tilelang writes before the headers of a source."""
_FALLBACKS = "#ifdef ENABLE_BF16\n#include <tl_templates/cuda/cuda_bf16_fallbacks.cuh>\n#endif\n"
"""Text that tilelang writes after the headers of a source. The text needs a macro that only a user's flags define."""
_INCLUDE = re.compile(r"[ \t]*#[ \t]*include[ \t]*(<[^>\n]*>)[ \t]*")


class Flavour(msgspec.Struct, frozen=True):
    """Compiler options: the architecture, and whether fast math is on."""

    arch: str
    fast_math: bool = False


def nvcc_only_reason(pass_configs: dict[str, Any]) -> str:
    """Return the reason why only nvcc can compile with these options; empty if cicc can also use the options."""
    if any(os.environ.get(name) for name in ("NVCC_APPEND_FLAGS", "NVCC_PREPEND_FLAGS")):
        return "only nvcc reads NVCC_APPEND_FLAGS and NVCC_PREPEND_FLAGS"
    if os.environ.get("TILELANG_VERBOSE", "0").lower() in ("1", "true", "yes", "on"):
        return "TILELANG_VERBOSE requests ptxas' figures, which only nvcc prints"
    if pass_configs.get("tl.device_compile_flags"):
        return "only nvcc takes compile flags"
    level = pass_configs.get("tl.ptxas_register_usage_level")
    return "" if level is None else "only nvcc takes tl.ptxas_register_usage_level"


def parts(source: str) -> tuple[tuple[str, ...], str]:
    """Return the headers that a source includes, as ``<file>``, and the rest of the source with the same line numbers.

    If the source is not in tilelang's form, for example because the user added text, raises `ValueError` with a reason.
    """
    for text in (MICROSOFT, _FALLBACKS):
        source = source.replace(text, "\n" * text.count("\n"), 1)
    includes, lines = list[str](), source.splitlines(keepends=True)
    for n, line in enumerate(lines):
        if match := _INCLUDE.fullmatch(line.rstrip("\n")):
            includes.append(match[1])
            lines[n] = "\n"
        elif line.strip():
            break
    rest = "".join(lines)
    if match := re.search(r"^[ \t]*#[ \t]*include.*", rest, re.MULTILINE):
        raise ValueError(f"it has {match[0].strip()!r} among its kernels")
    return tuple(dict.fromkeys(includes)), rest


def flavour_of(arch: str, pass_configs: dict[str, Any]) -> Flavour:
    return Flavour(arch, bool(pass_configs.get("tl.enable_fast_math")))


# ---- instructions


GMMA = ("cute/arch/mma_sm90_gmma.hpp", "cute/arch/mma_sm90_gmma_ext.hpp")
WGMMA = "tl_templates/cuda/instruction/wgmma.h"
KNOWN_HEADERS = {*GUESS, *GUESS_BEFORE_HOPPER, "atomic.h", "math.h", "cuda_fp8.h", "cluster.h"}
"""Headers of tilelang that use no wgmma instructions, or use them only through the header `WGMMA`."""
_USE = re.compile(
    r"\btl::wgmma_(ss|rs)<\s*tl::DataType::(k\w+), tl::DataType::(k\w+), tl::DataType::(k\w+), (\d+), (\d+), (\d+),"
)
_ROW = re.compile(
    r"^#define (TL_WGMMA_DEFINE_\w+)\(N\)[\s\\]+TL_WGMMA_DEFINE_(SS|RS)_\w+\((k\w+), (k\w+), (k\w+), (\d+), N, (\d+),"
    r"[\s\\]+(MMA_\w+?)##N##(\w+)\)",
    re.MULTILINE,
)
_MACRO = re.compile(r"^#define (TL_WGMMA_DEFINE_(?:SS|RS)_\w+)\((?:[^\n]*\\\n)*[^\n]*\n", re.MULTILINE)
_ALL = re.compile(r"^TL_WGMMA_FOREACH_N_\w+\((TL_WGMMA_DEFINE_\w+)\);\n", re.MULTILINE)
_STRUCTURE = re.compile(r"^(?:template <\n(?:[^\n]*\n)*?>\n)?struct (MMA_\w+)\n\{\n.*?^\};\n", re.MULTILINE | re.DOTALL)


class Instruction(NamedTuple):
    """A wgmma instruction: its kind (``SS`` or ``RS``), the types of its matrices (`a`, `b`, `c`), and its sizes."""

    operands: str
    a: str
    b: str
    c: str
    m: int
    n: int
    k: int


def uses(source: str) -> frozenset[Instruction] | None:
    """Return the instructions that a source names; None if the source may use other instructions, or does not include
    the header `WGMMA`."""
    includes = re.findall(r"^\s*#\s*include\s*[<\"](\S+)[>\"]", source, re.MULTILINE)
    ours = {name.removeprefix("tl_templates/cuda/") for name in includes if name.startswith("tl_templates/")}
    others = {name for name in includes if name.startswith(("cute/", "cutlass/"))}
    strange = ours - KNOWN_HEADERS - {"cuda_bf16_fallbacks.cuh"}
    if WGMMA.removeprefix("tl_templates/cuda/") not in ours or strange or others:
        return None
    if re.search(r"\bcute\b|\bGMMA\b|\bMMA_|#\s*include\s*\"", source):
        return None
    used = [Instruction(use[0].upper(), *use[1:4], *map(int, use[4:])) for use in _USE.findall(source)]
    if len(used) != len(re.findall(r"\bwgmma_(?:ss|rs)\b", source)):
        return None
    return frozenset(used)


def without_instructions(templates: str, cutlass: str, folder: str) -> str | None:
    """Below `folder`, write copies of headers without wgmma instructions. Return the include folder of these copies.

    `templates`, `cutlass`: tilelang's include folders. Returns None if atune does not know this version of the headers.
    """
    path = f"{templates}/{WGMMA}"
    try:
        wgmma = Path(path).read_text()
        written = {name: (Path(cutlass) / name).read_text() for name in GMMA}
    except OSError:
        return None
    if _rows(wgmma) is None:
        return None
    for name, text in written.items():
        written[name] = _as_file(f"{cutlass}/{name}", _STRUCTURE.sub(lambda m: "\n" * m[0].count("\n"), text))
    common = f'#include "{os.path.dirname(path)}/../common.h"'
    written[WGMMA] = _as_file(path, _ALL.sub("\n", wgmma).replace('#include "../common.h"', common))
    target = Path(folder, "headers")
    for name, text in written.items():
        file = target / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return str(target)


def _rows(wgmma: str) -> dict[tuple[str, ...], re.Match[str]] | None:
    """Return the macros of the header `WGMMA` by instruction; None if the header's text `wgmma` has an unknown form."""
    rows = {match.groups()[1:7]: match for match in _ROW.finditer(wgmma)}
    return rows if set(_ALL.findall(wgmma)) == {row[1] for row in rows.values()} else None


@functools.cache
def definitions(templates: str, cutlass: str, wanted: frozenset[Instruction]) -> str | None:
    """Return the text to put after the copied headers to define `wanted`; None if an instruction is unknown."""
    wgmma = (Path(templates) / WGMMA).read_text()
    rows = _rows(wgmma) or {}
    used = [(rows.get((kind, a, b, c, str(m), str(k))), n) for kind, a, b, c, m, n, k in sorted(wanted)]
    instructions = [(row, n) for row, n in used if row is not None]
    if len(instructions) < len(wanted):
        return None
    names, texts = {f"{row[8]}{n}{row[9]}" for row, n in instructions}, dict[str, str]()
    for name in GMMA:
        whole = (Path(cutlass) / name).read_text()
        for structure in names:
            if match := _structure_in(whole, structure):
                first = whole.count("\n", 0, match.start()) + 1
                lines = match[0].splitlines(keepends=True)  # cicc itself does not expand __LINE__
                text = "".join(re.sub(r"\b__LINE__\b", str(n), line) for n, line in enumerate(lines, first))
                texts[structure] = f'#line {first} "{cutlass}/{name}"\n{text}'
    if texts.keys() != names:
        return None
    structures = "".join(texts[name] for name in sorted(texts))
    named = "".join(f"{row[0]}\n{row[1]}({n});\n#undef {row[1]}\n" for row, n in instructions)
    common = [match for match in _MACRO.finditer(wgmma) if re.search(rf"\b{match[1]}\(", named)]
    macros = "".join(match[0] for match in common) + named + "".join(f"#undef {match[1]}\n" for match in common)
    return f"namespace cute::SM90::GMMA {{\n{structures}}}\nnamespace tl {{\n{macros}}}\n"


def _structure_in(text: str, structure: str) -> re.Match[str] | None:
    """Find the definition of `structure` in a header's text, without scanning the thousand other definitions."""
    at = text.find(f"\nstruct {structure}\n{{\n") + 1
    if not at:
        return None
    template = _STRUCTURE.match(text, text.rfind("\ntemplate <\n", 0, at) + 1)
    return template if template and template[1] == structure else _STRUCTURE.match(text, at)


def _as_file(path: str, text: str) -> str:
    """Return `text` with a mark that makes compilers take it for the file `path`, which has the same line numbers."""
    return f'#line 1 "{path}"\n{text}'
