"""Candidates that differ in nothing but the order of their thread blocks are lowered once.

`T.use_swizzle` leaves one annotation in a kernel, and lowering carries it along untouched: it is read when the source
is printed. So a candidate whose kernel is another's but for that annotation takes the other's lowered modules, with
its own annotation and symbol in them. Whether that gives what lowering it would give is checked on the first such
candidate of a run; where it does not, the run lowers every candidate.

Workers share what they lowered through files in the run's folder, each written whole.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from atune.stages.accelerators.host_code import HostCode
from atune.stages.compile import ir
from atune.system.folders import whole_file

BLOCK_ORDER = "threadblock_swizzle_pattern"
"""The annotation that `T.use_swizzle` makes."""


@dataclass(frozen=True)
class Modules:
    """A kernel's lowered halves: in tvm's JSON, and as they are printed. `device`: the device module itself."""

    host: HostCode | None
    """What the host's half comes to; None where only its JSON tells."""
    host_json: str
    device_json: str
    device: Any
    host_source: str
    source: str

    def prints_as(self, other: Modules | Relative) -> bool:
        return (self.host_source, self.source) == (other.host_source, other.source)


class Relative(msgspec.Struct, frozen=True):
    """A lowered candidate as others read it. `order`: its annotation's value as text; empty where it has none."""

    symbol: str
    order: str
    host: HostCode | None
    host_json: str
    device_json: str
    host_source: str
    source: str


class Families:
    """What the workers of one run have lowered, by kernel without the annotation.

    `settings`: what decides lowering beside the kernel. `print_`: prints a device module.
    """

    def __init__(self, folder: str, settings: str, print_: Callable[[Any], str]) -> None:
        self.folder = Path(folder)
        self.settings, self.print = settings, print_

    def lowered(self, bare: str, orders: Sequence[Any], symbol: str, lower: Callable[[], Modules]) -> Modules:
        """Return a kernel's lowered modules: made of a relative's, else by `lower`.

        `bare` and `orders` are what `split` parts the kernel into.
        """
        if len(orders) > 1 or (self.folder / "doubted").exists():
            return lower()
        path = self.folder / hashlib.sha256(f"{self.settings}\0{bare}".encode()).hexdigest()[:32]
        order = orders[0].value if orders else None
        text = "" if order is None else "".join(str(order))  # tvm's own kind of string is none to msgspec
        relative = self._read(path)
        if relative is not None and self._gives(relative, order):
            derived = self._derive(relative, symbol, order)
            if (self.folder / "checked").exists():
                return derived
            modules = lower()
            if relative.order != text:  # else nothing was put in or taken out
                self._note(modules.prints_as(derived))
            return modules
        modules = lower()
        mine = Relative(
            symbol,
            text,
            modules.host,
            modules.host_json,
            modules.device_json,
            modules.host_source,
            modules.source,
        )
        other = self._read(path)  # another worker's, of the meantime: then both are there to compare
        if other is not None and other.order != mine.order and not (self.folder / "checked").exists():
            if self._gives(other, order):
                self._note(modules.prints_as(self._derive(other, symbol, order)))
            elif mine.order:
                self._note(self._derive(mine, other.symbol, None).prints_as(other))
        if other is None or not other.order:
            self._write(path, mine)
        return modules

    @staticmethod
    def _gives(relative: Relative, order: Any) -> bool:
        """Tell whether modules of this order can be made of the relative's: else nobody knows where it belongs."""
        return bool(relative.order) or order is None

    def _derive(self, relative: Relative, symbol: str, order: Any) -> Modules:
        """Return the modules of `relative` under `symbol`, with the block order `order`, or with none."""
        from tilelang import tvm

        def reordered(statement: Any) -> Any:
            if statement.attr_key != BLOCK_ORDER:
                return None
            if order is None:
                return statement.body
            return tvm.tirx.AttrStmt(statement.node, BLOCK_ORDER, order, statement.body)

        def renamed(text: str) -> str:
            return text.replace(relative.symbol, symbol)  # which occurs nowhere else

        device = ir.load(renamed(relative.device_json))
        functions = {
            name: function.with_body(
                tvm.tirx.stmt_functor.ir_transform(function.body, None, reordered, ["tirx.AttrStmt"])
            )
            for name, function in device.functions.items()
        }
        device = tvm.IRModule(functions, attrs=device.attrs)
        return Modules(
            relative.host,
            renamed(relative.host_json),
            str(tvm.ir.save_json(device)),
            device,
            renamed(relative.host_source),
            self.print(device),
        )

    def _note(self, same: bool) -> None:
        with contextlib.suppress(OSError):
            (self.folder / ("checked" if same else "doubted")).touch()

    def _read(self, path: Path) -> Relative | None:
        try:
            return msgspec.msgpack.decode(path.read_bytes(), type=Relative)
        except OSError:
            return None

    def _write(self, path: Path, relative: Relative) -> None:
        with contextlib.suppress(OSError):  # a full disk costs time alone
            self.folder.mkdir(exist_ok=True)
            with whole_file(path) as part:
                Path(part).write_bytes(msgspec.msgpack.encode(relative))


def split(function: Any) -> tuple[str, list[Any]]:
    """Return `function` in tvm's JSON without its annotations of block order, under a name all share, and these."""
    from tilelang import tvm

    orders: list[Any] = []

    def without(statement: Any) -> Any:
        if statement.attr_key != BLOCK_ORDER:
            return None
        orders.append(statement)
        return statement.body

    body = tvm.tirx.stmt_functor.ir_transform(function.body, None, without, ["tirx.AttrStmt"])
    return str(tvm.ir.save_json(function.with_body(body).with_attr("global_symbol", "bare"))), orders
