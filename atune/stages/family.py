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
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

BLOCK_ORDER = "threadblock_swizzle_pattern"
"""The annotation that `T.use_swizzle` makes."""

Modules = tuple[Any, Any]
"""A kernel's lowered host and device module."""


class Relative(msgspec.Struct, frozen=True):
    """A lowered candidate: its kernel without the annotation, its symbol, and its modules, in tvm's JSON."""

    bare: str
    symbol: str
    ordered: bool
    host: str
    device: str


class Families:
    """What the workers of one run have lowered, by kernel without the annotation.

    `settings`: what decides lowering beside the kernel.
    """

    def __init__(self, folder: str, settings: str) -> None:
        self.folder = Path(folder)
        self.settings = settings

    def lowered(self, function: Any, symbol: str, lower: Callable[[], Modules], print_: Callable[..., Any]) -> Modules:
        """Return the lowered modules of `function`: from a relative's, else by `lower`.

        `print_` gives the texts of the modules that two lowerings are compared by.
        """
        from tilelang import tvm

        bare, orders = _split(function)
        doubted = self.folder / "doubted"
        if len(orders) > 1 or doubted.exists():
            return lower()
        key = f"{self.settings}\0{tvm.ir.structural_hash(bare)}"
        path = self.folder / hashlib.sha256(key.encode()).hexdigest()[:32]
        relative = self._read(path, bare)
        if relative is None or (orders and not relative.ordered):  # where its annotation would belong is not known
            modules = lower()
            self._write(path, bare, symbol, bool(orders), modules)
            return modules
        derived = _derive(relative, symbol, orders[0].value if orders else None)
        if (self.folder / "checked").exists():
            return derived
        modules = lower()
        same = print_(*modules) == print_(*derived)
        (self.folder / ("checked" if same else "doubted")).touch()
        return modules

    def _read(self, path: Path, bare: Any) -> Relative | None:
        from tilelang import tvm

        try:
            found = msgspec.msgpack.decode(path.read_bytes(), type=Relative)
        except OSError:
            return None
        return found if tvm.ir.structural_equal(tvm.ir.load_json(found.bare), bare) else None

    def _write(self, path: Path, bare: Any, symbol: str, ordered: bool, modules: Modules) -> None:
        from tilelang import tvm

        texts = [str(tvm.ir.save_json(one)) for one in (bare, *modules)]
        data = msgspec.msgpack.encode(Relative(texts[0], symbol, ordered, texts[1], texts[2]))
        with contextlib.suppress(OSError):  # a full disk costs time alone
            self.folder.mkdir(exist_ok=True)
            fd, part = tempfile.mkstemp(dir=self.folder, suffix=".part")
            with open(fd, "wb") as file:
                file.write(data)
            os.replace(part, path)


def _split(function: Any) -> tuple[Any, list[Any]]:
    """Return `function` without its annotations of block order, under a symbol that all share, and these."""
    from tilelang import tvm

    orders: list[Any] = []

    def without(statement: Any) -> Any:
        if statement.attr_key != BLOCK_ORDER:
            return None
        orders.append(statement)
        return statement.body

    body = tvm.tirx.stmt_functor.ir_transform(function.body, None, without, ["tirx.AttrStmt"])
    return function.with_body(body).with_attr("global_symbol", "bare"), orders


def _derive(relative: Relative, symbol: str, order: Any) -> Modules:
    """Return the modules of `relative` under `symbol`, with the block order `order`, or with none."""
    from tilelang import tvm

    def reordered(statement: Any) -> Any:
        if statement.attr_key != BLOCK_ORDER:
            return None
        if order is None:
            return statement.body
        return tvm.tirx.AttrStmt(statement.node, BLOCK_ORDER, order, statement.body)

    # A symbol occurs nowhere else, so that replacing it in the text is safe.
    host, device = (
        tvm.ir.load_json(text.replace(relative.symbol, symbol)) for text in (relative.host, relative.device)
    )
    functions = {
        name: function.with_body(tvm.tirx.stmt_functor.ir_transform(function.body, None, reordered, ["tirx.AttrStmt"]))
        for name, function in device.functions.items()
    }
    return host, tvm.IRModule(functions, attrs=device.attrs)
