"""Machine code in ELF files: sections by name, and the CUDA binaries inside a library.

Layouts: System V ABI, figures 4-3, 4-8 and 4-15; machine 190 is CUDA (``EM_CUDA`` of LLVM's and glibc's ``elf.h``).
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
    """A section of a 64-bit ELF file. `data`: its contents, empty for one that only has a size."""

    size: int
    info: int
    data: bytes


def sections(elf: bytes | memoryview) -> dict[str, Section]:
    """Return the sections by name.

    Raises `ValueError` for anything but a 64-bit ELF file.
    """
    if bytes(elf[:5]) != MAGIC:
        raise ValueError("not a 64-bit ELF file")
    (table,) = struct.unpack_from("<Q", elf, 0x28)
    entry_size, count, names = struct.unpack_from("<HHH", elf, 0x3A)
    if table + count * entry_size > len(elf) or entry_size < _SECTION.size:
        raise ValueError("not a whole ELF file")
    headers = [_SECTION.unpack_from(elf, table + i * entry_size) for i in range(count)]
    texts, found = headers[names][2], {}
    for name, kind, offset, size, info in headers:
        text = bytes(elf[texts + name : texts + name + 4096]).partition(b"\0")[0].decode(errors="replace")
        found[text] = Section(size, info, b"" if kind == _NOBITS else bytes(elf[offset : offset + size]))
    return found


def cuda_binaries(library: bytes) -> Iterator[bytes]:
    """Yield the CUDA binaries that a library holds uncompressed, each to the library's end."""
    at = library.find(MAGIC, 1)
    while at >= 0:
        if struct.unpack_from("<H", library, at + 0x12)[0] == _CUDA:
            yield library[at:]
        at = library.find(MAGIC, at + 1)


def kernels_code(library: bytes, symbol: str) -> list[dict[str, bytes]]:
    """Return the contents of a PrimFunc's kernels, once for each binary in `library` that has them.

    A PrimFunc of several `T.Kernel` has several: ``<symbol>_kernel``, ``<symbol>_kernel_1`` and so on. Each kernel has
    its code, constants, registers a thread and static shared memory. The binary adds its own constants. `symbol` is
    replaced in the names. Sections that name other kernels by number, and debug sections, are omitted.
    """
    own = re.compile(rf"\.(text|nv\.constant\d+|nv\.shared)\.{re.escape(symbol)}_kernel(_\d+)?|\.nv\.constant3")
    found = []
    for mine, noted in _parts_of(library, own):
        code = {}
        for name, section in mine.items():
            code[name.replace(symbol, "K")] = section.data or section.size.to_bytes(8, "little")
            if name.startswith(".text."):
                code[f"registers of {name.replace(symbol, 'K')}"] = _registers(section, noted).to_bytes(4, "little")
        found.append(code)
    return found


_NOTE = struct.Struct("<BBH")
_SIZED, _FRAME_SIZE, _REGCOUNT = 4, 0x11, 0x2F
_NUMBER = 0xFFFFFF
"""The part of ``sh_info`` that numbers the symbol."""


def machine_facts(library: bytes, symbol: str) -> MachineFacts | None:
    """Return the resources that a PrimFunc's kernels need, from the first binary that has them; None without one.

    Registers and stack frame are in ``.nv.info`` as attributes ``EIATTR_REGCOUNT`` and ``EIATTR_FRAME_SIZE``, after the
    number of the kernel's symbol. That is the low part of ``sh_info`` of its code. (Before CUDA 13 the high byte of
    that had the registers, too.)
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
    """Yield, for each binary with code among its sections named `own`, these sections and its ``.nv.info``."""
    for binary in cuda_binaries(library):
        try:
            parts = sections(memoryview(binary))
        except (ValueError, struct.error, IndexError):
            continue
        mine = {name: part for name, part in parts.items() if own.fullmatch(name)}
        if any(name.startswith(".text.") for name in mine):
            yield mine, _attributes(parts[".nv.info"].data) if ".nv.info" in parts else {}


def _registers(code: Section, noted: Mapping[tuple[int, int], int]) -> int:
    """Return the registers a thread of a kernel's code; before CUDA 13 the high byte of ``sh_info`` has them, too."""
    return noted.get((_REGCOUNT, code.info & _NUMBER), code.info >> 24)


def _attributes(notes: bytes) -> dict[tuple[int, int], int]:
    """Return the values of ``.nv.info`` by attribute and number of a symbol."""
    found, at = {}, 0
    while at + _NOTE.size <= len(notes):
        form, attribute, size = _NOTE.unpack_from(notes, at)
        at += _NOTE.size
        if form != _SIZED:
            continue
        if size == 8 and at + size <= len(notes):
            number, value = struct.unpack_from("<II", notes, at)
            found[attribute, number] = value
        at += size
    return found
