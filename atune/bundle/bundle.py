"""The bundle as a callable: it picks a kernel by a call's sizes."""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Mapping, Sequence
from numbers import Real
from pathlib import Path
from typing import Any, Literal

from atune.bundle.launch import (
    PLAIN,
    Libraries,
    Plan,
    check_device,
    check_machine,
    contiguous,
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
    Sizes,
    WrongArguments,
    named,
    read_manifest,
)

OnMiss = Literal["error", "nearest", "symbolic"]
MOST_PLANS = 4096
"""Most signatures of calls that a bundle remembers. After that it begins anew."""
SHOWN = 8
"""Problems that a message lists."""
Taking = tuple[BundledKernel, dict[str, int]]
"""A kernel that takes a call's arguments, and the values of its symbolic dimensions."""


def load(folder: str | os.PathLike[str], *, on_miss: OnMiss = "error") -> Bundle:
    """Return the bundle in `folder`, a callable.

    Every file is compared with its digest. A library is loaded by the first call that needs it.

    Raises `BundleError`, and its branches `DamagedBundle` and `WrongMachine`.

    Parameters
    ----------
    folder
        The folder that was written.
    on_miss
        What a call does whose sizes no problem has. ``error`` raises `OutsideProblems`. ``nearest`` runs the kernel of
        the nearest problem in log sizes, of those whose kernels take the shapes, and that differ in sizes alone.
        ``symbolic`` runs code in which the size is symbolic, of the group that has the nearest size and all other
        arguments; its latency there is in the warning. Both warn once for each signature, or raise `OutsideProblems`.
    """
    return Bundle(folder, on_miss=on_miss)


class Bundle:
    """Kernels of several problems, called as one.

    Call it with the inputs, and it returns the outputs; or with every parameter, and it returns None. The tensors'
    shapes choose the kernel. Where problems differ in something else, name it: ``bundle(Q, K, V, causal=True)``. Where
    the space's `where=` takes a size, the bundle serves the tuned sizes alone.
    Tensors are as they were tuned: of those dtypes, on such a device, and contiguous or with the declared strides. CUDA
    kernels run on torch's current stream. Several threads may call it.

    Raises `WrongArguments`, `OutsideProblems` and `WrongMachine`. Raises `RuntimeError` if an input requires grad while
    gradients are recorded.
    """

    def __init__(self, folder: str | os.PathLike[str], *, on_miss: OnMiss = "error") -> None:
        if on_miss not in ("error", "nearest", "symbolic"):
            raise BundleError(f"on_miss must be 'error', 'nearest' or 'symbolic', got {on_miss!r}")
        self.folder, self.on_miss = Path(folder), on_miss
        self.manifest, self._kernels, groups = read_manifest(self.folder)
        """The bundle's description of itself, as plain data."""
        check_machine(self.manifest)
        self._libraries = Libraries(self.folder.absolute(), self.manifest["files"])
        self._groups = [one for one in groups if on_miss == "symbolic" and one.over not in self.manifest["asks"]]
        asks = ", ".join(self.manifest["asks"])
        alone = asks and f"where= takes {asks}, and a bundle holds no functions: it serves the tuned sizes alone"
        lacks = "it has no symbolic kernels" if on_miss == "symbolic" else ""
        self._alone = "" if self._groups else alone or lacks
        """Why other sizes are always a miss; empty where they are not."""
        if self._alone and on_miss != "error":
            warnings.warn(f"on_miss={on_miss!r} of {self.folder} does nothing: {self._alone}", RuntimeWarning, 3)
        self.digest: str = self.manifest["digest"]
        """SHA-256 of the manifest, and so of everything: equal bundles choose equal kernels."""
        self._target: str = self.manifest["target"]
        if self._target == "cuda":
            prepare(self._libraries)  # the first call should not wait for it
        self._plans: dict[Any, Plan] = {}

    @property
    def problems(self) -> list[dict[str, Any]]:
        """The problems that were tuned, in order."""
        return [dict(kernel.problem) for kernel in self._kernels]

    def __call__(self, *arguments: Any, **problem: Any) -> Any:
        try:
            key: Any = tuple([
                None if t.__class__ in PLAIN
                else (t.__class__, t.dtype, t.shape, t.stride(), t.device, t.requires_grad, t.is_neg())
                for t in arguments
            ])  # fmt: skip
            if problem:
                key = key, tuple(sorted(problem.items())), repr(problem)  # which tells 0.0 from -0.0
            known = self._plans.get(key)
        except (AttributeError, TypeError):
            wrong = [type(one) for one in arguments if one.__class__ not in PLAIN and not hasattr(one, "stride")]
            what = f"an argument of {wrong[0]}" if wrong else f"the problem {problem}"
            raise WrongArguments(f"a bundle takes torch tensors and numbers; got {what}") from None
        return (known or self._planned(key, arguments, problem))(arguments)

    def __repr__(self) -> str:
        name, n = self.manifest["kernel"], len(self._kernels)
        count = f"{n} problem{'s' * (n != 1)}"
        return f"<atune bundle of {name}, {count}, target {self._target}, digest {self.digest[:12]}>"

    def _planned(self, key: Any, arguments: Sequence[Any], problem: Mapping[str, Any]) -> Plan:
        """Return what calls of this signature do, and remember it."""
        kernel, sizes = self._chosen(arguments, problem)
        if self._target == "cuda":
            check_device(self.manifest["arch"], _home(arguments))
        found = plan(kernel, self._libraries, self._target, arguments, sizes)
        if len(self._plans) >= MOST_PLANS:
            self._plans.clear()
        self._plans[key] = found
        return found

    def _chosen(self, arguments: Sequence[Any], problem: Mapping[str, Any]) -> Taking:
        """Return the kernel that a call runs."""
        if unknown := [name for name in problem if not any(name in one.problem for one in self._kernels)]:
            names = ", ".join(self._kernels[0].problem) or "nothing"
            raise WrongArguments(f"no problem of the bundle has {unknown[0]!r}: by name a call gives {names}")
        taking, misfits = list[Taking](), list[BundleError]()
        for kernel in (*self._kernels, *self._groups):
            try:
                taking.append((kernel, dimensions(kernel, arguments, self._target)))
            except BundleError as misfit:
                misfits.append(misfit)
        if not taking:
            nearest = max(misfits, key=lambda one: one.reached)
            if not isinstance(nearest, OutsideProblems):
                raise nearest
            fixed = "" if self._groups else "; its kernels are compiled for fixed sizes"
            raise OutsideProblems(f"{nearest}; {self._listed()}{fixed}")
        for name, size in (pair for _, sizes in taking for pair in sizes.items()):
            if problem.get(name, size) != size:
                raise WrongArguments(f"{name}={problem[name]!r} is given by name, and the tensors have {name}={size}")
        equal = [one for one in taking if distance(one[0].problem, {**one[1], **problem}) == 0]
        exact = [one for one in equal if not one[0].over]
        if not exact and (between := [one for one in equal if one[0].over in {**one[1], **problem}]):
            return self._between(between, arguments, problem)
        return exact[0] if len(exact) == 1 else self._missed(exact or taking, {**taking[0][1], **problem})

    def _between(self, taking: Sequence[Taking], arguments: Sequence[Any], problem: Mapping[str, Any]) -> Taking:
        """Return the kernel that a call runs, of those of groups that take its arguments."""
        apart, size, latency_ms, place = min(
            (distance({group.over: size}, {**sizes, **problem}), size, latency_ms, place)
            for place, (group, sizes) in enumerate(taking)
            for size, latency_ms in group.sizes_ms.items()
        )
        (group, sizes), call = taking[place], {**taking[place][1], **problem}
        every = (*self._kernels, *self._groups)
        told_apart([one for one in every if take_alike(group, one, len(arguments))], call)
        if apart == math.inf:
            raise OutsideProblems(f"no problem of such tensors has {named(call)}; {self._listed()}")
        took = f"at {group.over}={size}, the nearest size measured, it took {latency_ms:.4g} ms"
        instead = f"the symbolic kernel of {group} runs; {took}"
        warnings.warn(f"no problem of the bundle has {named(call)}: {instead}", RuntimeWarning, stacklevel=5)
        return group, sizes

    def _missed(self, taking: Sequence[Taking], call: Mapping[str, Any]) -> Taking:
        """Return what a call of no problem's sizes runs, of the kernels that take its arguments."""
        told_apart([kernel for kernel, _ in taking], call)
        used = min(taking, key=lambda one: (distance(one[0].problem, call), _sizes_of(one[0].problem)))
        if self.on_miss != "nearest" or self._alone or distance(used[0].problem, call) == math.inf:
            alone = f"; {self._alone}" if self._alone else ""
            raise OutsideProblems(f"no problem of such tensors has {named(call)}; {self._listed()}{alone}")
        instead = f"the kernel of {named(used[0].problem)} runs"
        warnings.warn(f"no problem of the bundle has {named(call)}: {instead}", RuntimeWarning, stacklevel=5)
        return used

    def _listed(self) -> str:
        shown = "; ".join(named(kernel.problem) for kernel in self._kernels[:SHOWN])
        more = f"; and {len(self._kernels) - SHOWN} more" if len(self._kernels) > SHOWN else ""
        groups = "".join(f"; symbolic {group}" for group in self._groups[:SHOWN])
        return f"the bundle {self.digest[:12]} has {shown}{more}{groups}"


def told_apart(kernels: Sequence[BundledKernel], call: Mapping[str, Any]) -> None:
    """Raise `WrongArguments` where problems that take the same tensors differ in what `call` does not name."""
    for name in kernels[0].problem:
        values = dict.fromkeys(repr(kernel.problem.get(name)) for kernel in kernels)
        if name not in call and len(values) > 1:
            ways = " or ".join(f"{name}={value}" for value in values)
            raise WrongArguments(f"{len(kernels)} problems take these tensors: give {ways}, by name")


def take_alike(group: BundledKernel, other: BundledKernel, count: int) -> bool:
    """Tell whether `group` takes `count` arguments of the shapes and dtypes that `other` takes."""
    given, sizes = group.given(count) or (), dict[str, Any]()
    return given == other.given(count) and all(
        a.dtype == b.dtype and len(a.shape or ()) == len(b.shape or ()) and _bind(a.shape or (), b.shape or (), sizes)
        for a, b in ((group.params[i], other.params[i]) for i in given)
    )


def dimensions(kernel: BundledKernel, arguments: Sequence[Any], target: str) -> dict[str, int]:
    """Return the symbolic dimensions' values in a call of `kernel`.

    The first misfit raises `OutsideProblems` if the kernel has other sizes there, else `WrongArguments`.
    """
    given = kernel.given(len(arguments))
    if given is None:
        n, most = len(kernel.inputs), len(kernel.params)
        inputs = f"{n} input{'s' * (n != 1)}"
        raise WrongArguments(f"the kernel takes {inputs}, or all {most} parameters; got {len(arguments)} arguments")
    sizes: dict[str, int] = {}
    for position, argument in zip(given, arguments, strict=True):
        try:
            _check(kernel.params[position], argument, target, _home(arguments))
            _bind_all(kernel.params[position], argument, sizes)
        except BundleError as misfit:
            first = type(misfit)(f"parameter {position}: {misfit}")
            first.reached = 2 * position + isinstance(misfit, WrongArguments)
            raise first from None
    return sizes


def _home(arguments: Sequence[Any]) -> Any:
    """Return the device of a call's first tensor; None without one."""
    return next((one.device for one in arguments if one.__class__ not in PLAIN), None)


def _check(param: BundleParam, argument: Any, target: str, home: Any) -> None:
    """Raise `WrongArguments` unless an argument is of the kind, device, dtype and rank that `param` declares."""
    device = "cpu" if target == "c" else "cuda"
    number = argument.__class__ in PLAIN
    if (param.shape is None) != number:
        wanted = "a number" if param.shape is None else f"a tensor of {param.dtype} {list(param.shape)}"
        raise WrongArguments(f"the kernel takes {wanted}; got {repr(argument) if number else 'a tensor'}")
    if param.shape is None:
        return
    if argument.device.type != device or argument.device != home:
        wanted = f"on {home}, as the first tensor" if home.type == device else f"on {device}"
        raise WrongArguments(f"the kernel takes tensors {wanted}; got one on {argument.device}")
    if argument.dtype != torch_dtype(param.dtype):
        raise WrongArguments(f"the kernel takes {param.dtype}; got {_described(argument)}")
    if argument.dim() != len(param.shape):
        wanted = f"{len(param.shape)} dimension{'s' * (len(param.shape) != 1)}"
        raise WrongArguments(f"the kernel takes {wanted}; got {_described(argument)}")


def _described(tensor: Any) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"


def _bind_all(param: BundleParam, tensor: Any, sizes: dict[str, int]) -> None:
    """Add the values of the symbolic dimensions of `param` to `sizes`, or raise where the tensor has others."""
    if param.shape is None:
        return
    shape, strides, before = tuple(tensor.shape), tensor.stride(), named(sizes)
    if not _bind(param.shape, shape, {}):
        raise OutsideProblems(f"no kernel takes {_described(tensor)} here")
    if not _bind(param.shape, shape, sizes):
        raise WrongArguments(f"{_described(tensor)} disagrees with the tensors before it: {before}")
    declared: Sizes = contiguous(shape) if param.strides is None else param.strides
    kept = [(w, got) for w, got, size in zip(declared, strides, shape, strict=True) if size > 1]
    if 0 not in shape and not _bind([w for w, _ in kept], [got for _, got in kept], sizes):
        wanted = "a contiguous tensor" if param.strides is None else f"a tensor with strides {list(param.strides)}"
        raise WrongArguments(f"the kernel takes {wanted}; got one with strides {list(strides)}")
    if wrong := disagreement(sizes):
        raise WrongArguments(f"{_described(tensor)} disagrees with {before or 'itself'}: {wrong}")


def _bind(wanted: Sequence[int | str], found: Sequence[int | str], sizes: dict[str, Any]) -> bool:
    """Tell whether numbers are as `wanted`. Names take the value that they have, or their first one."""
    return all(
        got == (sizes.setdefault(want, got) if isinstance(want, str) else want)
        for want, got in zip(wanted, found, strict=True)
    )


def distance(problem: Mapping[str, Any], call: Mapping[str, Any]) -> float:
    """Return how far a call's sizes are from those of `problem`: the sum of the log2 ratios.

    It is infinite if they differ in what is no size. What only one of them has does not count. It is rounded, so that
    machines whose logarithms differ in their last digit find the same ties.
    """
    total = 0.0
    for name, value in call.items():
        known = problem.get(name, value)
        if _same(known, value):
            continue
        if any(not isinstance(one, Real) or isinstance(one, bool) or one <= 0 for one in (known, value)):
            return math.inf
        total += abs(math.log2(known) - math.log2(value))
    return round(total, 9)


def _same(one: Any, other: Any) -> bool:
    """Tell whether two values are the same, as keys tell: True is not 1, and 0.0 is not -0.0."""
    alike = one == other and isinstance(one, bool) == isinstance(other, bool)
    return bool(alike and (one != 0 or str(one)[:1] == str(other)[:1]))


def _sizes_of(problem: Mapping[str, Any]) -> list[float]:
    """Return a problem's sizes: of equally near problems that of the smaller ones is taken, in any order."""
    return [value for _, value in sorted(problem.items()) if type(value) in (int, float)]
