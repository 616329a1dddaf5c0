"""What a kernel's machine code consists of: instructions by kind."""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec


class Instructions(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """Instructions in the code of a kernel, each counted once, however often it runs."""

    total: int = 0
    wgmma: int = 0
    """Matrix products of a warp group (Hopper)."""
    mma: int = 0
    """Matrix products of a warp, and those of tensor memory (Blackwell)."""
    tma: int = 0
    """Copies and prefetches by the tensor memory accelerator, bulk copies included."""
    cp_async: int = 0
    """Copies from global to shared memory past the registers."""
    barriers: int = 0
    """Arrivals and waits of a block's threads, at barriers of the multiprocessor."""
    mbarriers: int = 0
    """Operations on barriers in shared memory, such as TMA copies complete."""
    local: int = 0
    """Loads and stores of local memory: spills and stack."""


KINDS = {
    "wgmma": ("HGMMA", "QGMMA", "IGMMA", "BGMMA"),
    "mma": ("HMMA", "IMMA", "DMMA", "QMMA", "OMMA", "BMMA", "UTCHMMA", "UTCIMMA", "UTCQMMA", "UTCOMMA"),
    "tma": ("UTMALDG", "UTMASTG", "UTMAREDG", "UTMAPF", "UBLKCP", "UBLKRED", "UBLKPF"),
    "cp_async": ("LDGSTS",),
    "barriers": ("BAR", "UCGABAR_ARV", "UCGABAR_WAIT"),
    "mbarriers": ("SYNCS",),
    "local": ("LDL", "STL"),
}
"""Opcodes by kind, as the instruction set reference of the CUDA Binary Utilities lists them."""
_FUNCTION = re.compile(r"^\s*(?:Function\s*:\s*|\.section\s+\.text\.)([\w$.]+)")
_INSTRUCTION = re.compile(r"^\s*/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_]*)")
_PADDING = "NOP"


def counted(listing: str, symbol: str) -> Instructions | None:
    """Count the instructions of a PrimFunc's kernels in what nvdisasm or ``cuobjdump -sass`` says; None without any.

    Filling at the end of the code is left out.
    """
    own = re.compile(rf"{re.escape(symbol)}_kernel(_\d+)?")
    found, mine = list[str](), False
    for line in listing.splitlines():
        if function := _FUNCTION.match(line):
            mine = own.fullmatch(function[1]) is not None
        elif mine and (instruction := _INSTRUCTION.match(line)) and instruction[1] != _PADDING:
            found.append(instruction[1])
    return _by_kind(found) if found else None


def _by_kind(opcodes: Sequence[str]) -> Instructions:
    counts = {kind: sum(opcode in names for opcode in opcodes) for kind, names in KINDS.items()}
    return Instructions(total=len(opcodes), **counts)
