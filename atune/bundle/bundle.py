"""A bundle as a callable, which chooses a kernel by the sizes in the call."""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Mapping, Sequence
from numbers import Real
from pathlib import Path
from typing import Any, Literal

from atune.bundle.launch import (
    NUMBER_TYPES,
    CallPlan,
    Libraries,
    check_device,
    check_requirements,
    disagreement,
    plan,
    prepare,
    torch_dtype,
)
from atune.bundle.manifest import (
    BundledKernel,
    BundleError,
    BundleParam,
    OutsideProblems,
    WrongArguments,
    named,
    read_manifest,
)

OnOtherSizes = Literal["error", "nearest"]
MOST_PLANS = 4096
"""Largest number of call signatures that a bundle remembers. If there are more, it forgets all signatures."""
SHOWN_PROBLEMS = 8
Taking = tuple[BundledKernel, dict[str, int]]
"""The kernel for a call, and the values that the kernel's symbolic dimensions have in that call."""


def load(folder: str | os.PathLike[str], *, on_miss: OnOtherSizes = "error") -> Bundle:
    """Return the bundle in `folder` as a callable.

    Loading compares the content of every file with its digest. A library is loaded by the first call that needs it.

    Raises `BundleError`, or one of its subclasses `DamagedBundle` and `WrongMachine`.

    Parameters
    ----------
    folder
        The folder of the bundle.
    on_miss
        What a call does if no problem has its sizes. ``error`` raises `OutsideProblems`. ``nearest`` runs the kernel of
        the problem with the nearest sizes (by logarithms), and warns once per signature. The problem may differ from
        the call only in sizes, and its kernel must take the shapes. Otherwise, ``nearest`` raises `OutsideProblems`.
    """
    return Bundle(folder, on_miss=on_miss)


class Bundle:
    """The kernels of several problems, as one callable object. `load` returns it.

    If you pass the inputs, the call returns the outputs. If you pass every parameter, the call fills your outputs and
    returns None. The shapes of the tensors decide which kernel runs. If problems differ in another argument, pass that
    argument by name: ``bundle(Q, K, V, causal=True)``. If the space's `where=` takes a size, the bundle serves only the
    sizes that were tuned. Tensors must have the tuned dtypes, be on the same kind of device, and be contiguous or have
    the declared strides. CUDA kernels run on torch's current stream. Several threads may call a bundle simultaneously.

    Raises `WrongArguments`, `OutsideProblems` and `WrongMachine`. Raises `RuntimeError` if an input requires a gradient
    while torch records gradients.
    """

    def __init__(self, folder: str | os.PathLike[str], *, on_miss: OnOtherSizes = "error") -> None:
        if on_miss not in ("error", "nearest"):
            raise BundleError(f"on_miss must be 'error' or 'nearest', got {on_miss!r}")
        self.folder, self.on_miss = Path(folder), on_miss
        self.manifest, self._kernels = read_manifest(self.folder)
        """The content of ``manifest.json``, as plain data."""
        check_requirements(self.manifest)
        self._libraries = Libraries(self.folder.absolute(), self.manifest["files"])
        asks = ", ".join(self.manifest["asks"])
        self._alone = asks and f"where= takes {asks}, and a bundle has no functions, so it serves only the tuned sizes"
        """The reason that only tuned sizes are served; empty if the bundle may also serve other sizes."""
        if self._alone and on_miss != "error":
            warnings.warn(f"on_miss={on_miss!r} of {self.folder} has no effect: {self._alone}", RuntimeWarning, 3)
        self.digest: str = self.manifest["digest"]
        """SHA-256 of the manifest, which covers the whole bundle. Bundles with equal digests choose equal kernels."""
        self._target: str = self.manifest["target"]
        if self._target == "cuda":
            prepare(self._libraries)  # so that the first call does not wait for it
        self._plans: dict[Any, CallPlan] = {}

    @property
    def problems(self) -> list[dict[str, Any]]:
        """The problems that were tuned, in the order of the bundle."""
        return [dict(kernel.problem) for kernel in self._kernels]

    def __call__(self, *arguments: Any, **problem: Any) -> Any:
        try:
            key: Any = tuple([
                None if t.__class__ in NUMBER_TYPES
                else (t.__class__, t.dtype, t.shape, t.stride(), t.device, t.requires_grad, t.is_neg())
                for t in arguments
            ])  # fmt: skip
            if problem:
                key = key, tuple(sorted(problem.items())), repr(problem)  # repr distinguishes 0.0 from -0.0
            known = self._plans.get(key)
        except (AttributeError, TypeError):
            wrong = [type(a) for a in arguments if a.__class__ not in NUMBER_TYPES and not hasattr(a, "stride")]
            what = f"an argument of {wrong[0]}" if wrong else f"the problem {problem}"
            raise WrongArguments(f"a bundle takes torch tensors and numbers; got {what}") from None
        return (known or self._planned(key, arguments, problem))(arguments)

    def __repr__(self) -> str:
        name, n = self.manifest["kernel"], len(self._kernels)
        count = f"{n} problem{'s' * (n != 1)}"
        return f"<atune bundle of {name}, {count}, target {self._target}, digest {self.digest[:12]}>"

    def _planned(self, key: Any, arguments: Sequence[Any], problem: Mapping[str, Any]) -> CallPlan:
        """Return the plan for calls with this signature, and remember the plan."""
        kernel, sizes = self._chosen(arguments, problem)
        if self._target == "cuda":
            check_device(self.manifest["arch"], _home(arguments))
        made = plan(kernel, self._libraries, self._target, arguments, sizes)
        if len(self._plans) >= MOST_PLANS:
            self._plans.clear()
        self._plans[key] = made
        return made

    def _chosen(self, arguments: Sequence[Any], problem: Mapping[str, Any]) -> Taking:
        """Return the kernel that a call runs, and the values of the kernel's symbolic dimensions."""
        if unknown := [name for name in problem if not any(name in kernel.problem for kernel in self._kernels)]:
            names = ", ".join(self._kernels[0].problem) or "nothing"
            raise WrongArguments(f"no problem of the bundle has {unknown[0]!r}: a call may name {names}")
        taking, misfits = list[Taking](), list[BundleError]()
        for kernel in self._kernels:
            try:
                taking.append((kernel, dimensions(kernel, arguments, self._target)))
            except BundleError as misfit:
                misfits.append(misfit)
        if not taking:
            if not (others := [misfit for misfit in misfits if isinstance(misfit, OutsideProblems)]):
                raise misfits[0]
            raise OutsideProblems(f"{others[0]}; {self._listed()}; its kernels are compiled for fixed sizes")
        for name, size in (pair for _, sizes in taking for pair in sizes.items()):
            if problem.get(name, size) != size:
                raise WrongArguments(f"the call names {name}={problem[name]!r}, but the tensors have {name}={size}")
        exact = [(kernel, own) for kernel, own in taking if distance(kernel.problem, {**own, **problem}) == 0]
        return exact[0] if len(exact) == 1 else self._missed(exact or taking, {**taking[0][1], **problem})

    def _missed(self, taking: Sequence[Taking], call: Mapping[str, Any]) -> Taking:
        """Return the kernel for a call whose sizes no problem has. `taking`: kernels that can take the tensors."""
        told_apart([kernel for kernel, _ in taking], call)
        used = min(taking, key=lambda takes: (distance(takes[0].problem, call), _sizes_of(takes[0].problem)))
        if self.on_miss != "nearest" or self._alone or distance(used[0].problem, call) == math.inf:
            alone = f"; {self._alone}" if self._alone else ""
            raise OutsideProblems(f"no problem for these tensors has {named(call)}; {self._listed()}{alone}")
        instead = f"the kernel of {named(used[0].problem)} runs"
        warnings.warn(f"no problem of the bundle has {named(call)}, so {instead}", RuntimeWarning, stacklevel=5)
        return used

    def _listed(self) -> str:
        shown = "; ".join(named(kernel.problem) for kernel in self._kernels[:SHOWN_PROBLEMS])
        more = f"; and {len(self._kernels) - SHOWN_PROBLEMS} more" if len(self._kernels) > SHOWN_PROBLEMS else ""
        return f"the bundle {self.digest[:12]} has {shown}{more}"


def told_apart(kernels: Sequence[BundledKernel], call: Mapping[str, Any]) -> None:
    """Raise `WrongArguments` if problems for the same tensors differ in an argument that `call` does not have."""
    for name in kernels[0].problem:
        values = dict.fromkeys(repr(kernel.problem.get(name)) for kernel in kernels)
        if name not in call and len(values) > 1:
            ways = " or ".join(f"{name}={value}" for value in values)
            raise WrongArguments(f"{len(kernels)} problems take these tensors: pass {ways} by name")


def dimensions(kernel: BundledKernel, arguments: Sequence[Any], target: str) -> dict[str, int]:
    """Return the values that the symbolic dimensions of `kernel` have in a call.

    Raises `OutsideProblems` if the kernel has other sizes, and `WrongArguments` for any other wrong argument.
    """
    given = kernel.given(len(arguments))
    if given is None:
        n, most = len(kernel.inputs), len(kernel.params)
        inputs = f"{n} input{'s' * (n != 1)}"
        raise WrongArguments(f"the kernel takes {inputs}, or all {most} parameters; got {len(arguments)} arguments")
    sizes, position = dict[str, int](), 0
    try:
        for position, argument in zip(given, arguments, strict=True):
            _check(kernel.params[position], argument, target, _home(arguments))
        for position, argument in zip(given, arguments, strict=True):
            _bind_all(kernel.params[position], argument, sizes)
    except BundleError as misfit:
        raise type(misfit)(f"parameter {position}: {misfit}") from None
    return sizes


def _home(arguments: Sequence[Any]) -> Any:
    """Return the device of the first tensor in a call; None if the call has no tensor."""
    return next((argument.device for argument in arguments if argument.__class__ not in NUMBER_TYPES), None)


def _check(param: BundleParam, argument: Any, target: str, home: Any) -> None:
    """Raise `WrongArguments` unless an argument has the kind, device, dtype, rank and layout that `param` declares."""
    device = "cpu" if target == "c" else "cuda"
    number = argument.__class__ in NUMBER_TYPES
    if (param.shape is None) != number:
        wanted = "a number" if param.shape is None else f"a tensor of {param.dtype} {list(param.shape)}"
        raise WrongArguments(f"the kernel takes {wanted}; got {repr(argument) if number else 'a tensor'}")
    if param.shape is None:
        return
    if argument.device.type != device or argument.device != home:
        wanted = f"on {home}, like the first tensor" if home.type == device else f"on {device}"
        raise WrongArguments(f"the kernel takes tensors {wanted}; got a tensor on {argument.device}")
    if argument.dtype != torch_dtype(param.dtype):
        raise WrongArguments(f"the kernel takes {param.dtype}; got {_described(argument)}")
    if argument.dim() != len(param.shape):
        wanted = f"{len(param.shape)} dimension{'s' * (len(param.shape) != 1)}"
        raise WrongArguments(f"the kernel takes {wanted}; got {_described(argument)}")
    if param.strides is None and not argument.is_contiguous():
        raise WrongArguments(f"the kernel takes a contiguous tensor; got strides {list(argument.stride())}")


def _described(tensor: Any) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"


def _bind_all(param: BundleParam, tensor: Any, sizes: dict[str, int]) -> None:
    """Add the values of the symbolic dimensions of `param` to `sizes`. Raise if `sizes` has different values."""
    if param.shape is None:
        return
    shape, before = tuple(tensor.shape), named(sizes)
    if not _bind(param.shape, shape, {}):
        raise OutsideProblems(f"no kernel takes {_described(tensor)}")
    if not _bind(param.shape, shape, sizes):
        raise WrongArguments(f"{_described(tensor)} disagrees with earlier tensors, which have {before}")
    kept = [
        (want, got) for want, got, size in zip(param.strides or (), tensor.stride(), shape, strict=False) if size > 1
    ]
    if 0 not in shape and not _bind([want for want, _ in kept], [got for _, got in kept], sizes):
        wanted, got = list(param.strides or ()), list(tensor.stride())
        raise WrongArguments(f"the kernel takes a tensor with strides {wanted}; got strides {got}")
    if wrong := disagreement(sizes):
        raise WrongArguments(f"{_described(tensor)} disagrees with {before or 'itself'}: {wrong}")


def _bind(wanted: Sequence[int | str], given: Sequence[int | str], sizes: dict[str, Any]) -> bool:
    """Tell whether `given` equals `wanted`. `sizes` has the values of names in `wanted`, and gets new ones."""
    return all(
        got == (sizes.setdefault(want, got) if isinstance(want, str) else want)
        for want, got in zip(wanted, given, strict=True)
    )


def distance(problem: Mapping[str, Any], call: Mapping[str, Any]) -> float:
    """Return the distance of the sizes in a call from the sizes in `problem`: the sum of the absolute log2 ratios.

    The distance is infinite if an argument that is not a size differs. An argument that the call or the problem lacks
    is ignored. The sum is rounded, so that the last digit of a logarithm does not decide between equal distances.
    """
    total = 0.0
    for name, value in call.items():
        known = problem.get(name, value)
        if _same(known, value):
            continue
        if any(not isinstance(size, Real) or isinstance(size, bool) or size <= 0 for size in (known, value)):
            return math.inf
        total += abs(math.log2(known) - math.log2(value))
    return round(total, 9)


def _same(one: Any, other: Any) -> bool:
    """Tell whether two values are the same. True is not the same as 1, and 0.0 is not the same as -0.0."""
    alike = one == other and isinstance(one, bool) == isinstance(other, bool)
    return bool(alike and (one != 0 or str(one)[:1] == str(other)[:1]))


def _sizes_of(problem: Mapping[str, Any]) -> list[float]:
    """Return the sizes in a problem, sorted by name. If problems are equally near, the smallest sizes win."""
    return [value for _, value in sorted(problem.items()) if type(value) in (int, float)]
