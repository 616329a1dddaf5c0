"""Shares one compile of device code among candidates that differ only in the order of their thread blocks.

tilelang prints `T.use_swizzle` as one line of a kernel, ``const dim3 blockIdx = tl::rasterization2DRow<10>();``. Of
several kernels that differ only in that line, one is compiled. In it, a variable in constant memory selects the order.
The binary is then written once for each order: the file gets that variable's initial value and the kernel's name.
Compiling takes most of a candidate's time, and a branch that all threads take alike costs a kernel almost nothing.
Finalists are compiled as tilelang compiles them.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from atune.stages.accelerators.base import Accelerator, Host, unless_cuda
from atune.stages.compile.elf import place_of
from atune.stages.compile.output import CompileError
from atune.stages.compile.steps import Binary, Compiled, CompileJob

ORDER = re.compile(r"^[ \t]*const dim3 blockIdx = (tl::rasterization2D\w+<[\d, ]+>\(\));\n", re.MULTILINE)
"""The line that `T.use_swizzle` becomes."""
IN_ORDER = "dim3(::blockIdx.x, ::blockIdx.y, ::blockIdx.z)"
"""The order of a kernel without such a line: the device's own."""


class SwizzleCompile(Accelerator):
    """Compiles one of several kernels that differ only in their block order, and derives the others' binaries from
    it."""

    name, version, exact = "swizzle_compile", 1, False

    def applies(self, host: Host) -> str:
        if not host.n_final:
            return "without a final no finalist is compiled again, each exactly"
        if host.verbose:
            return "the compilers' figures are asked for, of each kernel"
        return unless_cuda(host)

    def common(self, source: str, symbol: str) -> str:
        return without_order(source, symbol) if len(ORDER.findall(source)) <= 1 else ""

    def compile(self, job: CompileJob, plain: Callable[[CompileJob], Compiled]) -> Compiled:
        known = families(job.kernels)
        if not known:
            return plain(job)
        first, *others = layers([kernel.symbol for kernel in job.kernels], known)
        try:
            alone = job.of(first)
            compiled = plain(replace(alone, source=with_choice(alone.source, known), lines=False))
            (binary,) = compiled.binaries
            variants = [variant(binary.code, known, layer) for layer in range(len(others) + 1)]
        except (ValueError, RuntimeError, CompileError):  # then each is compiled alone
            return plain(job)
        members = sum(len(family.symbols) for family in known)
        why = f"{members} kernels by {len(known)} compiles: they differ in their block order"
        binaries = tuple(map(Binary, map(tuple, (first, *others)), variants))
        shared = frozenset(kernel.symbol for kernel in job.kernels)  # each binary has those without relatives, too
        return Compiled(binaries, compiled.compiler, "; ".join(filter(None, (compiled.why, why))), shared)


class Printed(Protocol):
    """A lowered candidate's symbol, and the device code printed for it alone."""

    @property
    def symbol(self) -> str: ...

    @property
    def source(self) -> str: ...


def without_order(source: str, symbol: str) -> str:
    """Return the common part of candidates that differ only in their block order."""
    return ORDER.sub("", source).replace(symbol, "K")


@dataclass(frozen=True)
class Family:
    """Kernels that differ only in their block order: their symbols, the compiled one first, and their orders."""

    symbols: tuple[str, ...]
    orders: tuple[str, ...]

    @property
    def switch(self) -> str:
        """Name of the variable that selects a binary's order, counted from one."""
        return f"order_of_{self.symbols[0]}"


def families(kernels: Sequence[Printed]) -> list[Family]:
    """Return the families with several members among `kernels`. The first member has the line that others may lack."""
    by_source: dict[str, list[Printed]] = {}
    for kernel in kernels:
        if len(ORDER.findall(kernel.source)) <= 1:
            by_source.setdefault(without_order(kernel.source, kernel.symbol), []).append(kernel)
    found = []
    for members in by_source.values():
        members.sort(key=lambda member: ORDER.search(member.source) is None)
        orders = [match[1] if (match := ORDER.search(member.source)) else IN_ORDER for member in members]
        if len(members) > 1 and orders[0] != IN_ORDER:
            found.append(Family(tuple(member.symbol for member in members), tuple(orders)))
    return found


def layers(symbols: Sequence[str], known: Sequence[Family]) -> list[list[str]]:
    """Split `symbols` into parts with at most one member of each family. The first part has all that are compiled."""
    place = {symbol: n for family in known for n, symbol in enumerate(family.symbols)}
    parts: list[list[str]] = [[] for _ in range(max(place.values(), default=0) + 1)]
    for symbol in symbols:
        parts[place.get(symbol, 0)].append(symbol)
    return parts


def with_choice(code: str, known: Sequence[Family]) -> str:
    """Return the device code `code` of the first layer, in which each family's kernel can have any of its orders.

    Raises `ValueError` if a kernel's line is not found.
    """
    for family in known:
        kernel = code.rfind(f"{family.symbols[0]}_kernel(")
        match = ORDER.search(code, kernel) if kernel >= 0 else None
        if match is None or match[1] != family.orders[0] or "__global__" in code[kernel : match.start()]:
            raise ValueError(f"the block order of {family.symbols[0]} is not where it was")
        *others, last = family.orders
        tests = "".join(f"{family.switch} == {n} ? {order} : " for n, order in enumerate(others, 1))
        code = f"{code[: match.start()]}  const dim3 blockIdx = {tests}{last};\n{code[match.end() :]}"
        head = code.find('extern "C" __global__')
        code = f'{code[:head]}extern "C" __constant__ int {family.switch} = 1;\n{code[head:]}'
    return code


def variant(cubin: bytes, known: Sequence[Family], layer: int) -> bytes:
    """Turn the binary of the first layer into that of another layer: other names, and their orders."""
    found = bytearray(cubin)
    for family in known:
        if layer < len(family.symbols):
            struct.pack_into("<i", found, place_of(found, family.switch), layer + 1)
            # Symbols are of one length, and each occurs nowhere else.
            found = found.replace(family.symbols[0].encode(), family.symbols[layer].encode())
    return bytes(found)
