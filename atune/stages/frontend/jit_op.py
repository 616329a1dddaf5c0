"""A `tilelang.JITKernel` → a torch operator, with the arguments that its code writes into declared."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from atune.errors import UsageError
from atune.stages.frontend.frontend import kernel_parameters
from atune.stages.measure.torch_op import OpKernel, argument_names, positions, register_op

_WRITE = 2
"""The bit of an access that says that it writes."""

_MASK_AT = {"tl.region": 1, "tl.access_ptr": 2, "tirx.tvm_access_ptr": 4}
"""Calls that stand for a part of a buffer, with the place of the argument that says what is done to it."""


def jit_op(
    kernel: Any,
    name: str,
    *,
    target: str,
    backward: Callable[..., Any] | None = None,
    setup_context: Callable[..., Any] | None = None,
    mutates: Sequence[int] | None = None,
) -> Any:
    """Return a `tilelang.JITKernel` as a torch operator named `name`, which takes what the kernel takes.

    `target`: ``cuda`` or ``c``. `mutates`: positions of the parameters that it writes into in place; None: those that
    its code may write into. Other parameters, and errors: `atune.stages.measure.loader.Kernel.as_op`.
    """
    function = kernel.prim_func
    buffers = [function.buffer_map.get(variable) for variable in function.params]
    params = kernel_parameters(function)
    returned = tuple(int(i) % len(params) for i in kernel.adapter.result_idx or ())
    own = {i for i in written(function) if i not in returned}
    changed = positions(params, "mutates", sorted(own) if mutates is None else mutates)
    if inside := sorted({*changed} & {*returned}):
        raise UsageError(f"as_op: mutates names {inside[0]}, which this kernel makes and returns itself")

    def launch(*arguments: Any) -> tuple[Any, ...]:
        found = kernel.torch_function(*arguments)
        return () if not returned else (found,) if len(returned) == 1 else tuple(found)

    names = [str(v.name) if b is None else str(b.name) for v, b in zip(function.params, buffers, strict=True)]
    op = OpKernel(
        params=params,
        names=argument_names(names),
        returned=returned,
        mutates=changed,
        target=target,
        launch=launch,
        identity=(kernel,),
        scalars={i: name for i, name in enumerate(names) if buffers[i] is None},
    )
    return register_op(name, op, backward=backward, setup_context=setup_context)


def written(function: Any) -> set[int]:
    """Return the positions of tensors that a PrimFunc may write into; one whose address is taken counts as written."""
    from tilelang import tvm

    owners = {b.data: i for i, v in enumerate(function.params) if (b := function.buffer_map.get(v)) is not None}
    found: set[int] = set()

    def look(node: Any) -> None:
        data = None
        if isinstance(node, tvm.tirx.BufferStore):
            data = node.buffer.data
        elif isinstance(node, tvm.tirx.Call):
            data = _written_by(node)
        if data is not None and data in owners:
            found.add(owners[data])

    tvm.tirx.stmt_functor.post_order_visit(function.body, look)
    return found


def _written_by(call: Any) -> Any:
    """Return the memory that a call stands for where that may be written into; None else."""
    name = str(getattr(call.op, "name", ""))
    if name != "tirx.address_of":
        if (place := _MASK_AT.get(name)) is None:
            return None
        mask = getattr(call.args[place], "value", None)
        if mask is not None and not int(mask) & _WRITE:
            return None
    if name == "tirx.tvm_access_ptr":
        return call.args[1]
    buffer = getattr(call.args[0], "buffer", None)
    return None if buffer is None else buffer.data
