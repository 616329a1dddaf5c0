"""Lowers candidates that differ only in the order of their thread blocks once.

`T.use_swizzle` leaves one annotation in a kernel. Lowering passes it on unchanged, and only printing the source reads
it. So a kernel that differs from another only in that annotation takes the other's lowered modules, with its own
annotation and symbol. Kernels have one form if they differ only in numbers. For the first kernel of each form, and for
one in `SAMPLED` of the others, the result is compared with lowering. If it differs, kernels of that form are lowered
one by one.

Workers share lowered kernels through files in the run's folder, each written whole.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from atune.model.folders import whole_file
from atune.stages import tilelang
from atune.stages.accelerators.registry import Accelerator, Host, unless_cuda
from atune.stages.compile.steps import LowerTask, Modules, load_ir, printed, printed_host
from atune.stages.session.session import session

SAMPLED = 8
"""One in this many kernels is checked, even after many correct ones."""
BLOCK_ORDER = "threadblock_swizzle_pattern"
"""The annotation of `T.use_swizzle`."""


class Relative(msgspec.Struct, frozen=True):
    """A lowered kernel for other workers, in tvm's JSON. `order`: its annotation's value as text; empty without one."""

    symbol: str
    order: str
    host: str
    device: str


class SwizzleLowering(Accelerator):
    """Takes a kernel's lowered modules from one that differs only in its block order."""

    name, version = "swizzle_lowering", 1

    def applies(self, host: Host) -> str:
        return unless_cuda(host)

    def lower(self, job: LowerTask, plain: Callable[[LowerTask], Modules]) -> Modules:
        bare, orders = split(job.function)
        if len(orders) > 1:
            return plain(job)
        folder = Path(session().run_dir, "relatives")
        return Relatives(folder, bare, job.others).lowered(orders, job.symbol, lambda: plain(job))


class Relatives:
    """Lowered kernels of one run's workers that equal `bare`, a kernel without its annotation.

    `others`: everything but the kernel that decides lowering.
    """

    def __init__(self, folder: Path, bare: str, others: str) -> None:
        self.folder = folder
        form = _digest(others, re.sub(r"(?<![\w.])\d+(?![\w.])", "0", bare))  # names of types stay
        kernel = _digest(others, bare)
        self.path, self.sampled = folder / kernel, int(kernel, 16) % SAMPLED == 0
        self.checked, self.doubted = folder / f"{form}.checked", folder / f"{form}.doubted"

    def lowered(self, orders: Sequence[Any], symbol: str, lower: Callable[[], Modules]) -> Modules:
        """Return a kernel's lowered modules: from a relative, otherwise by `lower`. `orders`: the annotations from
        `split`."""
        if self.doubted.exists():
            return lower()
        order = orders[0].value if orders else None
        text = "" if order is None else "".join(str(order))  # msgspec does not encode tvm's own kind of string
        relative = self._read()
        if relative is not None and _gives(relative, order):
            derived = _derived(relative, symbol, order)
            if self.checked.exists() and not self.sampled:
                return derived
            modules = lower()
            if relative.order != text:  # otherwise no annotation was added or removed
                self._note(_print_alike(modules, derived))
            return modules
        modules = lower()
        self._offer(modules, order, Relative(symbol, text, _json(modules.host), _json(modules.device)))
        return modules

    def _offer(self, modules: Modules, order: Any, mine: Relative) -> None:
        """Leave a lowered kernel to others, and compare it with one that another worker left since."""
        other = self._read()
        if other is not None and other.order != mine.order and not self.checked.exists():
            if _gives(other, order):
                self._note(_print_alike(modules, _derived(other, mine.symbol, order)))
            elif mine.order:
                theirs = Modules(load_ir(other.host), load_ir(other.device))
                self._note(_print_alike(theirs, _derived(mine, other.symbol, None)))
        if other is None or not other.order:
            with contextlib.suppress(OSError):  # a full disk only costs time
                self.folder.mkdir(exist_ok=True)
                with whole_file(self.path) as part:
                    Path(part).write_bytes(msgspec.msgpack.encode(mine))

    def _note(self, same: bool) -> None:
        """Remember the outcome of a check. A failed check is final."""
        with contextlib.suppress(OSError):
            (self.checked if same else self.doubted).touch()

    def _read(self) -> Relative | None:
        try:
            return msgspec.msgpack.decode(self.path.read_bytes(), type=Relative)
        except OSError:
            return None


def _gives(relative: Relative, order: Any) -> bool:
    """Tell whether a relative's modules can take this order: without an annotation, its position is unknown."""
    return bool(relative.order) or order is None


def _derived(relative: Relative, symbol: str, order: Any) -> Modules:
    """Return the modules of `relative` under `symbol`, with the block order `order`, or without any."""

    def reordered(statement: Any) -> Any:
        if statement.attr_key != BLOCK_ORDER:
            return None
        if order is None:
            return statement.body
        return tilelang.tvm.tirx.AttrStmt(statement.node, BLOCK_ORDER, order, statement.body)

    def renamed(text: str) -> Any:
        return load_ir(text.replace(relative.symbol, symbol))  # it occurs nowhere else

    device = renamed(relative.device)
    transform = tilelang.tvm.tirx.stmt_functor.ir_transform
    functions = {
        name: function.with_body(transform(function.body, None, reordered, ["tirx.AttrStmt"]))
        for name, function in device.functions.items()
    }
    return Modules(renamed(relative.host), tilelang.tvm.IRModule(functions, attrs=device.attrs))


def _print_alike(one: Modules, other: Modules) -> bool:
    sources = [(printed_host(modules.host), printed(modules.device)) for modules in (one, other)]
    return sources[0] == sources[1]


def split(function: Any) -> tuple[str, list[Any]]:
    """Return `function` in tvm's JSON under a common name without its block order, and its block orders."""
    orders: list[Any] = []

    def without(statement: Any) -> Any:
        if statement.attr_key != BLOCK_ORDER:
            return None
        orders.append(statement)
        return statement.body

    body = tilelang.tvm.tirx.stmt_functor.ir_transform(function.body, None, without, ["tirx.AttrStmt"])
    return _json(function.with_body(body).with_attr("global_symbol", "bare")), orders


def _json(value: Any) -> str:
    return str(tilelang.tvm.ir.save_json(value))


def _digest(*texts: str) -> str:
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()[:32]
