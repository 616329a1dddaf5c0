"""Which parameters of a kernel are outputs, and which inputs it may write into: one rule for all who ask.

Outputs are those that the caller or the kernel names. Where neither does, they are those that the code writes and never
reads. Where there are none, the kernel has no outputs: what it reads holds data, which nobody may overwrite.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from atune.errors import WorkloadError
from atune.model.artifact import KernelParam, Roles
from atune.stages import tilelang
from atune.stages.frontend.frontend import kernel_parameters

READ, WRITE = 1, 2
"""Bits of an access, as tilelang has them."""

_MASK_AT = {"tl.region": 1, "tl.access_ptr": 2, "tirx.tvm_access_ptr": 4}
"""Calls that stand for a part of a buffer, with the place of the argument that says what is done to it."""


def roles_of(
    function: Any, out_idx: Sequence[int] | None, zero: Sequence[int] = (), restore: Sequence[int] = ()
) -> Roles:
    """Return the roles of the parameters of a PrimFunc.

    `out_idx`: the outputs that are named, by position; None where they are not. What the function itself returns is
    named, too. `zero`: parameters to set to zero, which are outputs unless `out_idx` says otherwise. `restore`:
    parameters that hold data, and are outputs only if they are named. Raises `WorkloadError` for a position that no
    tensor has.
    """
    params, attrs, done = kernel_parameters(function), function.attrs or {}, accesses(function)
    written = {i for i, access in done.items() if access & WRITE}
    zeroed, kept = set(_positions("zero", params, zero)), _positions("restore", params, restore)
    if out_idx is not None:
        outputs = set(_positions("out_idx", params, out_idx))
    elif "tilelang_out_idx" in attrs:
        outputs = zeroed | {int(i) % len(params) for i in attrs["tilelang_out_idx"]}
    else:
        outputs = zeroed | {i for i in written if done[i] == WRITE and i not in kept}
    return Roles(*(tuple(sorted(each)) for each in (outputs, zeroed, (written | zeroed) - outputs)))


def _positions(name: str, params: Sequence[KernelParam], given: Sequence[int]) -> list[int]:
    for i in given:
        if not -len(params) <= i < len(params):
            raise WorkloadError(f"{name} {i}: the kernel has {len(params)} parameters")
        if params[i].shape is None:
            raise WorkloadError(f"{name} {i}: this parameter is a number, and must be a tensor")
    return [i % len(params) for i in given]


def accesses(function: Any) -> dict[int, int]:
    """Return what a PrimFunc may do with its tensors, by position: `READ`, `WRITE` or both.

    An atomic operation does both. So may whoever gets an address.
    """
    tvm = tilelang.tvm
    owners = {b.data: i for i, v in enumerate(function.params) if (b := function.buffer_map.get(v)) is not None}
    found = dict.fromkeys(owners.values(), 0)

    def note(data: Any, access: int) -> None:
        if data in owners:
            found[owners[data]] |= access

    def look(node: Any) -> bool:
        if isinstance(node, tvm.tirx.BufferStore):
            note(node.buffer.data, WRITE)
        elif isinstance(node, tvm.tirx.BufferLoad):
            note(node.buffer.data, READ)
        elif isinstance(node, tvm.tirx.Var):
            note(node, READ | WRITE)
        elif isinstance(node, tvm.tirx.Call):
            name = str(getattr(node.op, "name", ""))
            if "atomic" in name:
                for argument in node.args:
                    if (part := _part(argument)) is not None and part.access & WRITE:
                        note(part.data, READ | WRITE)
            if (part := _part(node)) is not None:
                note(part.data, part.access)
                for one in part.within:
                    visit(one)
                return False
        return True

    def visit(root: Any) -> None:
        tvm.tirx.stmt_functor.pre_order_visit(root, look)

    visit(function.body)
    return found


class _Part(NamedTuple):
    """A part of the memory `data`, and what is done to it. `within`: the expressions that say which part."""

    data: Any
    access: int
    within: Sequence[Any]


def _part(call: Any) -> _Part | None:
    """Return the part of a buffer that a call stands for; None for other calls."""
    name = str(getattr(getattr(call, "op", None), "name", ""))
    if name not in _MASK_AT and name != "tirx.address_of":
        return None
    first, *others = call.args
    mask = getattr(call.args[_MASK_AT[name]], "value", None) if name in _MASK_AT else None
    access = READ | WRITE if mask is None else int(mask)
    if name == "tirx.tvm_access_ptr":
        return _Part(others[0], access, others[1:])
    buffer = getattr(first, "buffer", None)
    return None if buffer is None else _Part(buffer.data, access, [*first.indices, *others])
