"""Machine code in ELF files: sections by name, and the CUDA binaries inside a library.

Figures 4-3, 4-8 and 4-15 of the System V ABI show the layouts. LLVM and glibc define machine 190 as CUDA (``EM_CUDA``).
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from atune.model.artifact import MachineFacts

MAGIC = b"\x7fELF\x02"
_CUDA = 190
_SECTION = struct.Struct("<II16xQQ4xI16x")
_NOBITS = 8


class Section(NamedTuple):
    """A section of a 64-bit ELF file. `data`: contents of the section; empty if the file gives only a size."""

    size: int
    info: int
    data: bytes


def sections(elf: bytes | memoryview) -> dict[str, Section]:
    """Return the sections by name. Raises `ValueError` if `elf` is not a 64-bit ELF file."""
    if bytes(elf[:5]) != MAGIC:
        raise ValueError("not a 64-bit ELF file")
    (table,) = struct.unpack_from("<Q", elf, 0x28)
    entry_size, count, names = struct.unpack_from("<HHH", elf, 0x3A)
    if table + count * entry_size > len(elf) or entry_size < _SECTION.size:
        raise ValueError("the ELF file is truncated")
    headers = [_SECTION.unpack_from(elf, table + i * entry_size) for i in range(count)]
    texts, by_name = headers[names][2], {}
    for name, kind, offset, size, info in headers:
        text = bytes(elf[texts + name : texts + name + 4096]).partition(b"\0")[0].decode(errors="replace")
        by_name[text] = Section(size, info, b"" if kind == _NOBITS else bytes(elf[offset : offset + size]))
    return by_name


def cuda_binaries(library: bytes) -> Iterator[bytes]:
    """Yield the uncompressed CUDA binaries in a library, each followed by the rest of the library."""
    at = library.find(MAGIC, 1)
    while at >= 0:
        if struct.unpack_from("<H", library, at + 0x12)[0] == _CUDA:
            yield library[at:]
        at = library.find(MAGIC, at + 1)


def kernels_code(library: bytes, symbol: str) -> list[dict[str, bytes]]:
    """For each binary in `library` that contains the kernels of a PrimFunc, return the kernels' sections by name.

    Each `T.Kernel` of the PrimFunc is a kernel: ``<symbol>_kernel``, ``<symbol>_kernel_1`` and so on. The sections hold
    a kernel's code, constants, registers per thread and static shared memory, and the binary's own constants. In names
    of sections, ``K`` replaces `symbol`. Debug sections and sections that refer to kernels by number are omitted.
    """
    own = re.compile(rf"\.(text|nv\.constant\d+|nv\.shared)\.{re.escape(symbol)}_kernel(_\d+)?|\.nv\.constant3")
    binaries = []
    for mine, noted in _parts_of(library, own):
        code = {}
        for name, section in mine.items():
            code[name.replace(symbol, "K")] = section.data or section.size.to_bytes(8, "little")
            if name.startswith(".text."):
                code[f"registers of {name.replace(symbol, 'K')}"] = _registers(section, noted).to_bytes(4, "little")
        binaries.append(code)
    return binaries


_NOTE = struct.Struct("<BBH")
_SIZED, _FRAME_SIZE, _REGCOUNT = 4, 0x11, 0x2F
_NUMBER = 0xFFFFFF
"""Mask of the bits in ``sh_info`` that hold the number of a symbol."""


def machine_facts(library: bytes, symbol: str) -> MachineFacts | None:
    """Return the resources of a PrimFunc's kernels in the first binary that contains the kernels; None if none does.

    In ``.nv.info``, the attributes ``EIATTR_REGCOUNT`` and ``EIATTR_FRAME_SIZE`` give the registers and the stack frame
    of the kernel whose symbol number precedes the value. The low bits of a code section's ``sh_info`` hold the symbol
    number of its kernel. (Before CUDA 13, the high byte of ``sh_info`` also held the number of registers.)
    """
    own = re.compile(rf"\.(text|nv\.shared)\.{re.escape(symbol)}_kernel(_\d+)?")
    for parts, noted in _parts_of(library, own):
        code = {name: section for name, section in parts.items() if name.startswith(".text.")}
        mine = [section.info & _NUMBER for section in code.values()]
        static = [section.size for name, section in parts.items() if name not in code]
        return MachineFacts(
            registers=max(_registers(section, noted) for section in code.values()),
            stack_bytes=max(noted.get((_FRAME_SIZE, number), 0) for number in mine),
            code_bytes=sum(section.size for section in code.values()),
            static_smem_bytes=max(static, default=0),
        )
    return None


def _parts_of(library: bytes, own: re.Pattern[str]) -> Iterator[tuple[dict[str, Section], dict[tuple[int, int], int]]]:
    """For each binary with code that matches `own`, yield the matching sections and the attributes of ``.nv.info``."""
    for binary in cuda_binaries(library):
        try:
            parts = sections(memoryview(binary))
        except (ValueError, struct.error, IndexError):
            continue
        mine = {name: part for name, part in parts.items() if own.fullmatch(name)}
        if any(name.startswith(".text.") for name in mine):
            yield mine, _attributes(parts[".nv.info"].data) if ".nv.info" in parts else {}


def _registers(code: Section, noted: Mapping[tuple[int, int], int]) -> int:
    """Return a kernel's registers per thread. Before CUDA 13, the high byte of ``sh_info`` holds the number of
    registers."""
    return noted.get((_REGCOUNT, code.info & _NUMBER), code.info >> 24)


def _attributes(notes: bytes) -> dict[tuple[int, int], int]:
    """Return the values in ``.nv.info`` by attribute and symbol number."""
    values, at = {}, 0
    while at + _NOTE.size <= len(notes):
        form, attribute, size = _NOTE.unpack_from(notes, at)
        at += _NOTE.size
        if form != _SIZED:
            continue
        if size == 8 and at + size <= len(notes):
            number, value = struct.unpack_from("<II", notes, at)
            values[attribute, number] = value
        at += size
    return values
