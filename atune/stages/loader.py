"""Artifact → callable, and callable → torch operator.

The device's process uses this module, and so does `TuneResult.kernel` in the user's process.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
import threading
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import msgspec

from atune.bundle.launch import c_function, disagreement
from atune.errors import AtuneError, UsageError
from atune.model.artifact import Artifact, KernelParam, Roles
from atune.stages import tilelang
from atune.stages.tensors import Outputs, bind_dimensions, check_arguments, device_type

_NAME = re.compile(r"[A-Za-z_]\w*::[A-Za-z_]\w*")
_registered: dict[str, tuple[Hashable, Any]] = {}
"""Registered operators by name, each with the identity of its kernel."""
_registering = threading.Lock()


class LoadError(AtuneError):
    """The library is gone, or does not contain the kernel's symbol."""


def load(artifact: Artifact) -> Callable[..., None]:
    """Return a function that takes all parameters of the kernel, including outputs, and launches the kernel.

    CUDA launches go to torch's current stream. A library on a noexec mount is loaded from memory. Raises `LoadError`.
    """
    if not os.path.exists(artifact.path):
        raise LoadError(f"{artifact.path} is gone: tune again to rebuild it")
    with ExitStack() as stack:
        if os.statvfs(artifact.path).f_flag & os.ST_NOEXEC:
            link = f"{stack.enter_context(tempfile.TemporaryDirectory())}/kernel.so"
            memory = stack.enter_context(open(os.memfd_create("kernel"), "wb"))
            os.symlink(f"/proc/self/fd/{memory.fileno()}", link)
            shutil.copyfile(artifact.path, link)
            artifact = msgspec.structs.replace(artifact, path=link)
        try:
            if artifact.target == "c":
                return c_function(artifact.path, artifact, lambda given: bind_dimensions(artifact.params, given))
            # `load_module` calls the same functions. The module must stay loaded: a library finds its kernels at its
            # first launch, through the module that was loaded last, and later loads of the library reuse these kernels.
            opened = tilelang.tvm.get_global_func(tilelang.LOAD_MODULE)(artifact.path)
            tilelang.tvm.get_global_func(tilelang.KEEP_MODULE)(opened)
            return unless_empty(opened[artifact.symbol], artifact)
        except Exception as error:
            raise LoadError(f"{artifact.path} has no kernel {artifact.symbol}: {error}") from error


def unless_empty(launch: Callable[..., None], artifact: Artifact) -> Callable[..., None]:
    """Return `launch`, but skip launches that would write only empty tensors, because CUDA refuses an empty grid."""
    params, roles = artifact.params, artifact.roles or Roles()
    written = {*roles.outputs, *roles.writes}
    if not any(isinstance(size, str) or size == 0 for i in written for size in params[i].shape or ()):
        return launch

    def call(*arguments: Any) -> None:
        if any(arguments[i].numel() for i in written):
            launch(*arguments)

    return call


def checked(artifact: Artifact) -> Callable[..., None]:
    """Load a kernel like `load`, but let each call raise `ValueError` or `TypeError` for arguments that do not fit.

    The C function takes bare pointers, so without these checks it would read a wrong tensor out of bounds.
    """
    launch, params = load(artifact), artifact.params
    shapes = [msgspec.structs.replace(param, strides=None) for param in params]
    computed = any(isinstance(size, str) and not size.isidentifier() for p in shapes for size in p.shape or ())

    def call(*arguments: Any) -> None:
        check_arguments(params, arguments, device_type(artifact.target))
        if computed and (wrong := disagreement(bind_dimensions(shapes, arguments))):
            raise ValueError(f"the tensors disagree: {wrong}")
        launch(*arguments)

    return call


def calling(outputs: Outputs, launch: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that takes the inputs and returns new outputs. The function can also take every parameter.

    `launch` takes every parameter. Several outputs are returned in a list, as in tilelang. The function raises
    `ValueError` for a wrong number of arguments.
    """
    out_idx, n = outputs.positions, len(outputs.params)

    def call(*inputs: Any) -> Any:
        if len(inputs) not in (n, n - len(out_idx)):
            raise ValueError(f"Kernel expected {n - len(out_idx)} inputs, but {len(inputs)} are provided.")
        arguments = outputs.complete(inputs)
        launch(*arguments)
        if len(inputs) == n:
            return []
        return arguments[out_idx[0]] if len(out_idx) == 1 else [arguments[i] for i in out_idx]

    return call


class Kernel:
    """A tuned kernel. Call it with the inputs to get the outputs, or with all parameters to fill your own outputs.

    New outputs are prepared as they are for the kernel's check, for example set to zero. If you pass outputs, you must
    prepare them, and the call returns None. Inputs are torch tensors on the kernel's device, with the shapes and dtypes
    that the kernel was tuned for. An input must be contiguous unless its parameter is declared with strides. The kernel
    is launched on torch's current stream. While gradients are recorded, no input may require grad.
    """

    def __init__(self, artifact: Artifact, roles: Roles) -> None:
        self.artifact, self.roles = artifact, roles.handed_out()
        outputs = Outputs(artifact.params, roles.outputs, artifact.target, zero=roles.zero)
        self._call = calling(outputs, checked(artifact))
        self._guarded = without_gradients(self._call)

    def __call__(self, *tensors: Any) -> Any:
        made = self._guarded(*tensors)
        return (tuple(made) or None) if isinstance(made, list) else made

    def as_op(self, name: str) -> Any:
        """Return the kernel as a `torch.library` custom operator, for `torch.compile` and fake tensors.

        The operator takes the inputs and returns the outputs. `name`: the operator's name with its library. For
        example, ``mylib::gemm`` is also ``torch.ops.mylib.gemm``. The operator stays registered until the program ends.

        Raises `UsageError` if another kernel has the name, or if torch cannot register the kernel.
        """
        artifact = self.artifact
        identity = artifact.path, artifact.symbol, self.roles
        return register_op(name, self._call, artifact.params, self.roles, artifact.target, identity)

    def __repr__(self) -> str:
        return f"<atune kernel {self.artifact.symbol} for {self.artifact.target}>"


def without_gradients(run: Callable[..., Any]) -> Callable[..., Any]:
    """Return `run`, but while gradients are recorded, raise `RuntimeError` if an argument requires grad.

    The outputs have no backward function for the argument, so the argument's gradient would be silently wrong.
    """
    import torch

    recorded = torch.is_grad_enabled

    def call(*arguments: Any) -> Any:
        if recorded():
            for position, argument in enumerate(arguments):
                if getattr(argument, "requires_grad", False):
                    raise RuntimeError(
                        f"argument {position} requires grad, but the kernel has no backward: call it under "
                        "torch.no_grad(), with detached tensors, or as an operator (as_op) with a backward"
                    )
        return run(*arguments)

    return call


def register_op(
    name: str,
    call: Callable[..., Any],
    params: tuple[KernelParam, ...],
    roles: Roles,
    target: str,
    identity: Hashable,
    scalars: Mapping[int, str] | None = None,
) -> Any:
    """Register `call` as the `torch.library` custom operator `name` until the program ends, and return the operator.

    `call`: a function that takes all `params` except outputs, and returns one output or a sequence of outputs. `roles`:
    the outputs, and the inputs that `call` writes into. `scalars`: names of scalar parameters, by position. If an
    operator with the same name and `identity` is already registered, this operator is returned. Raises `UsageError` if
    another kernel or library has the name, or if torch cannot register the kernel.
    """
    import torch

    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise UsageError(f'as_op: pass a name with its library, such as "mylib::gemm", got {name!r}')
    written = {*roles.writes, *roles.zero_inputs}
    given = [i for i in range(len(params)) if i not in roles.outputs]
    if all(params[i].shape is None for i in given):
        raise UsageError(f"as_op: {name} takes no tensor, but torch needs a tensor to know the device")
    outputs = Outputs(params, roles.outputs, target, scalars)

    def returned(made: Sequence[Any]) -> Any:
        return None if not roles.outputs else made[0] if len(roles.outputs) == 1 else tuple(made)

    def launch(*arguments: Any) -> Any:
        made = call(*arguments)
        return returned([made] if isinstance(made, torch.Tensor) else made)

    def fake(*arguments: Any) -> Any:
        everything = outputs.among(arguments)
        check_arguments(params, everything)
        return returned([everything[i] for i in roles.outputs])

    declared = ", ".join(_declared(params[i], i, i in written) for i in given)
    with _registering:
        if (op := _registered_as(name, identity)) is None:
            op = torch.library.custom_op(
                name,
                launch,
                mutates_args=[f"p{i}" for i in sorted(written)],
                device_types=device_type(target),
                schema=f"({declared}) -> ({', '.join(['Tensor'] * len(roles.outputs))})",
                tags=(torch.Tag.needs_exact_strides,),
            )
            op.register_fake(fake)
            _registered[name] = identity, op
    return op


def _registered_as(name: str, identity: Hashable) -> Any:
    """Return the operator `name` of `identity`; None if the name is free. Raises `UsageError` if the name is taken."""
    import torch

    if name in _registered:
        known, op = _registered[name]
        if known != identity:
            raise UsageError(f"as_op: another kernel has the name {name}: choose another, or restart the program")
        return op
    library, _, short = name.partition("::")
    if hasattr(getattr(torch.ops, library), short):
        raise UsageError(f"as_op: torch already has an operator {name} that is not from atune: choose another name")
    return None


def _declared(param: KernelParam, position: int, written: bool) -> str:
    """Return the declaration of a parameter in torch's schema language."""
    if param.shape is not None:
        return f"Tensor{f'(a{position}!)' if written else ''} p{position}"
    kind = "bool" if param.dtype == "bool" else "SymInt" if param.dtype.startswith(("int", "uint")) else "float"
    return f"{kind} p{position}"
