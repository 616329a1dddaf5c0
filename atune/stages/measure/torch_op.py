"""Kernel → torch operator: known to `torch.compile`, to fake tensors and to autograd."""

from __future__ import annotations

import dataclasses
import functools
import keyword
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from atune.errors import UsageError
from atune.model.artifact import KernelParam, Roles
from atune.stages.measure.tensors import Outputs, check_arguments, device_type

_NAME = re.compile(r"[A-Za-z_]\w*::[A-Za-z_]\w*")


@dataclasses.dataclass(frozen=True)
class OpKernel:
    """The parts of a torch operator.

    `launch` takes the operator's arguments, which are `params` without those in `returned`, and returns a tuple of
    tensors, one for each of `returned`. `mutates`: positions in `params` of arguments that it writes into. `scalars`:
    names of parameters that are numbers, where sizes of outputs depend on them. `identity`: equal for the same
    kernel.
    """

    params: tuple[KernelParam, ...]
    names: tuple[str, ...]
    returned: tuple[int, ...]
    mutates: tuple[int, ...]
    target: str
    launch: Callable[..., tuple[Any, ...]]
    identity: tuple[Any, ...]
    scalars: Mapping[int, str] = dataclasses.field(default_factory=dict)

    @property
    def given(self) -> tuple[int, ...]:
        return tuple(i for i in range(len(self.params)) if i not in self.returned)


def op_kernel(
    params: tuple[KernelParam, ...],
    names: Sequence[str],
    roles: Roles,
    mutates: Sequence[int] | None,
    target: str,
    launch: Callable[..., Any],
    identity: tuple[Any, ...],
    scalars: Mapping[int, str] | None = None,
) -> OpKernel:
    """Return the operator of a kernel. `launch` takes every parameter.

    `mutates`: positions that it writes into, outputs that are given among them; None: the inputs that it may write
    into. Raises `UsageError` for one that no tensor has.
    """
    changed = positions(params, "mutates", [*roles.zero_inputs, *(roles.writes if mutates is None else mutates)])
    roles = roles.where_given(changed)
    outputs = Outputs(params, roles.outputs, target, scalars, roles.zero)

    def run(*given: Any) -> tuple[Any, ...]:
        arguments = outputs.complete(given)
        launch(*arguments)
        return tuple(arguments[i] for i in roles.outputs)

    return OpKernel(params, argument_names(names), roles.outputs, changed, target, run, identity, scalars or {})


_registered: dict[str, tuple[tuple[Any, ...], Any, Any]] = {}
"""By name: what identifies the operator, the operator, and torch's handle, without which torch drops it."""
_lock = threading.Lock()


def register_op(
    name: str,
    kernel: OpKernel,
    *,
    backward: Callable[..., Any] | None = None,
    setup_context: Callable[..., Any] | None = None,
) -> Any:
    """Return `kernel` as a `torch.library` custom operator, registered under `name` until the program ends.

    `backward`, `setup_context`: as for `torch.library.register_autograd`. Without `backward`, calls with arguments
    that require grad raise RuntimeError while gradients are recorded.
    The same kernel under the same name is the operator that is there. Raises `UsageError` for a name that another
    kernel or library has, and for what torch cannot register.
    """
    _check_asked(name, kernel, backward, setup_context)
    identity = (*kernel.identity, kernel.returned, kernel.mutates, backward, setup_context)
    with _lock:
        if name in _registered:
            known, op, _ = _registered[name]
            if known == identity:
                return op
            raise UsageError(
                f"as_op: {name} is another kernel's, or was made with other options, and torch cannot replace it in "
                "this program: choose another name, or start anew"
            )
        if _torch_has(name):
            raise UsageError(f"as_op: torch has an operator {name}, which is not atune's: choose another name")
        op, library = _made(name, kernel, backward, setup_context)
        _registered[name] = identity, op, library
        return op


def _check_asked(name: str, kernel: OpKernel, backward: Any, setup_context: Any) -> None:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise UsageError(f'as_op: give a name with its library, such as "mylib::gemm", got {name!r}')
    for what, given in (("backward", backward), ("setup_context", setup_context)):
        if given is not None and not callable(given):
            raise UsageError(f"as_op: {what} is a function, as for torch.library.register_autograd, got {given!r}")
    if setup_context is not None and backward is None:
        raise UsageError("as_op: setup_context keeps what backward needs, and there is no backward: give both")
    if backward is not None and kernel.mutates:
        raise UsageError(
            f"as_op: {name} writes into parameters {list(kernel.mutates)}, and torch takes a backward for operators "
            "that write into none: let the kernel return its outputs"
        )
    if all(kernel.params[i].shape is None for i in kernel.given):
        raise UsageError(f"as_op: {name} takes no tensor, which would tell torch the device: name outputs in mutates")


def _torch_has(name: str) -> bool:
    import torch

    library, _, op = name.partition("::")
    return hasattr(getattr(torch.ops, library), op)


def _made(name: str, kernel: OpKernel, backward: Any, setup_context: Any) -> tuple[Any, Any]:
    """Return torch's definition of the operator, and the library that must live as long."""
    import torch

    op = torch.library.custom_op(
        name,
        _launcher(kernel),
        mutates_args=tuple(kernel.names[i] for i in kernel.mutates),
        device_types=device_type(kernel.target),
        schema=_schema(kernel),
        tags=(torch.Tag.needs_exact_strides,),
    )
    op.register_fake(_fake(kernel))
    if backward is not None:
        op.register_autograd(backward, setup_context=setup_context)
        return op, None
    return op, _refusing_gradients(name, device_type(kernel.target))


def _schema(kernel: OpKernel) -> str:
    def argument(i: int) -> str:
        if kernel.params[i].shape is None:
            return f"{_scalar(kernel.params[i].dtype)} {kernel.names[i]}"
        return f"Tensor{f'(a{i}!)' if i in kernel.mutates else ''} {kernel.names[i]}"

    returns = ", ".join(["Tensor"] * len(kernel.returned))
    return f"({', '.join(map(argument, kernel.given))}) -> {returns if len(kernel.returned) == 1 else f'({returns})'}"


def _scalar(dtype: str) -> str:
    return "bool" if dtype == "bool" else "SymInt" if dtype.startswith(("int", "uint")) else "float"


def _returns(found: tuple[Any, ...]) -> Any:
    return None if not found else found[0] if len(found) == 1 else found


def _launcher(kernel: OpKernel) -> Callable[..., Any]:
    def launch(*arguments: Any) -> Any:
        return _returns(kernel.launch(*arguments))

    return launch


def _fake(kernel: OpKernel) -> Callable[..., Any]:
    """Return a function of fake tensors, or of those on torch's device ``meta``, that makes outputs like theirs."""
    outputs = Outputs(kernel.params, kernel.returned, kernel.target, kernel.scalars)

    def fake(*arguments: Any) -> Any:
        everything = outputs.among(arguments)
        check_arguments(kernel.params, everything)
        return _returns(tuple(everything[i] for i in kernel.returned))

    return fake


def _refusing_gradients(name: str, device: str) -> Any:
    """Have the operator refuse arguments whose gradient it cannot tell; return the library that does."""
    import torch

    library, _, short = name.partition("::")
    op = getattr(getattr(torch.ops, library), short).default
    fragment = torch.library.Library(library, "FRAGMENT")

    def launch(keyset: Any, *arguments: Any) -> Any:
        with torch._C._AutoDispatchBelowAutograd():
            return op.redispatch(keyset & torch._C._after_autograd_keyset, *arguments)

    def call(keyset: Any, *arguments: Any) -> Any:
        return without_gradients(functools.partial(launch, keyset))(*arguments)

    # For the device's own key: torch's definition has the one for all devices, and warns where it is replaced.
    fragment.impl(short, call, f"Autograd{device.upper()}", with_keyset=True)
    return fragment


def positions(params: Sequence[KernelParam], what: str, given: Sequence[int]) -> tuple[int, ...]:
    """Return positions of tensors among `params`, negative ones made positive. Raises `UsageError`."""
    n = len(params)
    for i in given:
        if not isinstance(i, int) or not -n <= i < n or params[i].shape is None:
            raise UsageError(f"as_op: {what} names {i!r}, and the kernel has tensors at {_tensors(params)}")
    return tuple(sorted({i % n for i in given}))


def _tensors(params: Sequence[KernelParam]) -> list[int]:
    return [i for i, param in enumerate(params) if param.shape is not None]


def argument_names(names: Sequence[str]) -> tuple[str, ...]:
    """Return names that a torch schema takes: the kernel's own where all are plain and differ, else ``p0``, ``p1``."""
    if len(set(names)) == len(names) and all(
        n.isascii() and n.isidentifier() and not keyword.iskeyword(n) for n in names
    ):
        return tuple(names)
    return tuple(f"p{i}" for i in range(len(names)))


def without_gradients(run: Callable[..., Any]) -> Callable[..., Any]:
    """Return `run` for calls without gradients: it raises RuntimeError where an argument requires a recorded one.

    The outputs would lack the way back to that argument, and its gradient would be wrong without a word.
    """
    import torch

    recorded = torch.is_grad_enabled

    def call(*arguments: Any) -> Any:
        if recorded():
            for position, argument in enumerate(arguments):
                if getattr(argument, "requires_grad", False):
                    raise RuntimeError(
                        f"argument {position} requires grad, and the kernel has no backward: give one by "
                        "as_op(name, backward=…), or call it under torch.no_grad() or with detached tensors"
                    )
        return run(*arguments)

    return call
