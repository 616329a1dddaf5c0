"""Which kernels take a call's arguments, and the sizes of the outputs."""

from __future__ import annotations

import ast
import functools
import math
import operator
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from atune.bundle.errors import WrongArguments
from atune.bundle.manifest import BundledKernel, BundleParam, Sizes, named

Problem = dict[str, Any]
PLAIN = frozenset({int, float, bool})
"""Types of arguments for parameters that are no tensors."""
_OPERATORS: Mapping[type[ast.operator], Any] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.FloorDiv: operator.floordiv,
}  # fmt: skip


class Misfit(NamedTuple):
    """Why a kernel does not take a call's arguments. `step`: which check failed, of `COUNT` to `LAYOUT`.

    `position`: of the parameter.
    """

    step: int
    why: str
    position: int = 0


COUNT, KIND, DEVICE, DTYPE, RANK, SHAPE, AGREE, LAYOUT = range(8)


def positions(kernel: BundledKernel, count: int) -> tuple[int, ...] | None:
    """Return the parameters that a call of `count` arguments gives: all, or all but the outputs; None for neither."""
    if count == len(kernel.params):
        return tuple(range(count))
    return kernel.inputs if count == len(kernel.inputs) else None


def fit(kernel: BundledKernel, arguments: Sequence[Any], target: str) -> dict[str, int] | Misfit:
    """Return the symbolic dimensions' values in a call of `kernel`, or why it does not take the arguments."""
    given = positions(kernel, len(arguments))
    if given is None:
        n, most = len(kernel.inputs), len(kernel.params)
        inputs = f"{n} input{'s' * (n != 1)}"
        return Misfit(COUNT, f"the kernel takes {inputs}, or all {most} parameters; got {len(arguments)} arguments")
    sizes: dict[str, int] = {}
    home = next((one.device for one in arguments if one.__class__ not in PLAIN), None)
    found = [_fit_one(kernel.params[i], i, one, home, target, sizes) for i, one in zip(given, arguments, strict=True)]
    return min((one for one in found if one is not None), key=lambda one: one.step, default=sizes)


def _fit_one(
    param: BundleParam, position: int, tensor: Any, home: Any, target: str, sizes: dict[str, int]
) -> Misfit | None:
    """Return why `tensor` is not as `param` is declared, and add the values of symbolic dimensions to `sizes`.

    `home`: the device of the call's first tensor.
    """
    where, device = f"parameter {position}", "cpu" if target == "c" else "cuda"
    if (param.shape is None) != (tensor.__class__ in PLAIN):
        wanted = "a number" if param.shape is None else f"a tensor of {param.dtype} {list(param.shape)}"
        got = f"{tensor!r}" if tensor.__class__ in PLAIN else "a tensor"
        return Misfit(KIND, f"{where}: the kernel takes {wanted}; got {got}")
    if param.shape is None:
        return None
    if tensor.device.type != device or tensor.device != home:
        wanted = f"on {home}, as the first tensor" if home.type == device else f"on {device}"
        return Misfit(DEVICE, f"{where}: the kernel takes tensors {wanted}; got one on {tensor.device}")
    shape, strides = tuple(tensor.shape), tensor.stride()
    dtype = str(tensor.dtype).removeprefix("torch.")
    if tensor.dtype != torch_dtype(param.dtype):
        return Misfit(DTYPE, f"{where}: the kernel takes {param.dtype}; got {dtype}")
    if len(shape) != len(param.shape):
        wanted = f"{len(param.shape)} dimension{'s' * (len(param.shape) != 1)}"
        return Misfit(RANK, f"{where}: the kernel takes {wanted}; got {dtype} {list(shape)}")
    before = dict(sizes)
    if not _bind(param.shape, shape, sizes):
        if _bind(param.shape, shape, {}):
            return Misfit(
                AGREE, f"{where}: {dtype} {list(shape)} disagrees with the tensors before it: {named(before)}"
            )
        return Misfit(SHAPE, f"{where}: no kernel takes {dtype} {list(shape)} here", position)
    declared: Sizes = contiguous(shape) if param.strides is None else param.strides
    kept = [(w, got) for w, got, size in zip(declared, strides, shape, strict=True) if size > 1]
    if 0 not in shape and not _bind([w for w, _ in kept], [got for _, got in kept], sizes):
        wanted = "a contiguous tensor" if param.strides is None else f"a tensor with strides {list(param.strides)}"
        return Misfit(LAYOUT, f"{where}: the kernel takes {wanted}; got one with strides {list(strides)}")
    return None


def _bind(wanted: Sequence[int | str], found: Sequence[int], sizes: dict[str, int]) -> bool:
    """Tell whether numbers are as `wanted`. Names take the value that they have, or their first one."""
    return all(
        got == (sizes.setdefault(want, got) if isinstance(want, str) else want)
        for want, got in zip(wanted, found, strict=True)
    )


def contiguous(shape: Sequence[int]) -> tuple[int, ...]:
    """Return the strides of a contiguous tensor."""
    return tuple(math.prod(max(size, 1) for size in shape[i + 1 :]) for i in range(len(shape)))


@functools.cache
def torch_dtype(name: str) -> Any:
    """Return torch's dtype for TileLang's `name`; None if torch has none."""
    import torch

    names = {"float8_e4m3": "float8_e4m3fn", "uint1": "bool"}
    return getattr(torch, names.get(name, name), None)


def output_layout(kernel: BundledKernel, position: int, sizes: Mapping[str, int]) -> tuple[list[int], list[int]]:
    """Return the shape and strides of the output `position`. Raises `WrongArguments` if the inputs do not tell."""
    param = kernel.params[position]
    if not param.shape:
        raise WrongArguments(f"output {position} has no dimensions and cannot be allocated: give every parameter")
    shape = _values(position, param.shape, sizes)
    return shape, list(contiguous(shape)) if param.strides is None else _values(position, param.strides, sizes)


def _values(position: int, wanted: Sizes, sizes: Mapping[str, int]) -> list[int]:
    found = [one if isinstance(one, int) else _value(one, sizes) for one in wanted]
    for one, value in zip(wanted, found, strict=True):
        if value is None:
            raise WrongArguments(f"output {position}: the inputs do not tell its {one!r}: give every parameter")
    return [value for value in found if value is not None]


def _value(text: str, sizes: Mapping[str, int]) -> int | None:
    """Return the value of a name, or of sums and products of names and numbers; None if one is unknown."""

    def of(node: ast.expr) -> int:
        match node:
            case ast.Constant(value=int(number)):
                return number
            case ast.Name(id=name):
                return sizes[name]
            case ast.BinOp(left=left, op=op, right=right):
                return int(_OPERATORS[type(op)](of(left), of(right)))
        raise KeyError(text)

    try:
        return sizes[text] if text in sizes else of(ast.parse(text, mode="eval").body)
    except (KeyError, SyntaxError):
        return None


def distance(problem: Mapping[str, Any], call: Mapping[str, Any]) -> float:
    """Return how far a call's sizes are from those of `problem`: the sum of the log2 ratios.

    It is infinite if they differ in what is no size. What only one of them has does not count. It is rounded, so that
    machines whose logarithms differ in their last digit find the same ties.
    """
    total = 0.0
    for name, value in call.items():
        known = problem.get(name, value)
        if known == value:
            continue
        if any(type(one) not in (int, float) or one <= 0 for one in (known, value)):
            return math.inf
        total += abs(math.log2(known / value))
    return round(total, 9)


def told_problem(kernels: Sequence[BundledKernel], arguments: Sequence[Any]) -> Problem:
    """Return what a call's tensors tell of its problem where no kernel takes them.

    A dimension is that of an argument if it has the argument's name, or its value in every kernel. One that all
    kernels share tells nothing where its size is another now.
    """
    first, found = kernels[0], dict[str, Any]()
    given = positions(first, len(arguments)) or ()
    dims = {
        (i, axis): size
        for i, one in zip(given, arguments, strict=False)
        if one.__class__ not in PLAIN
        for axis, size in enumerate(one.shape)
    }
    places = {name: [place for place in dims if _is_size_of(kernels, name, *place)] for name in first.problem}
    for name, value in first.problem.items():
        own = [p for p in places[name] if not any(p in others for n, others in places.items() if n != name)]
        sizes = {dims[place] for place in own or places[name]}
        constant = all(one.problem.get(name) == value for one in kernels)
        if len(sizes) == 1 and (own or (constant and sizes == {value})):
            found[name] = sizes.pop()
        elif constant and not sizes:
            found[name] = value
    return found


def _is_size_of(kernels: Sequence[BundledKernel], name: str, position: int, axis: int) -> bool:
    """Tell whether a dimension of a parameter is the problem's argument `name`."""
    for kernel in kernels:
        shape = kernel.params[position].shape if position < len(kernel.params) else None
        value = kernel.problem.get(name)
        if shape is None or axis >= len(shape) or type(value) is not int or shape[axis] not in (name, value):
            return False
    return True


def nearest(problems: Mapping[int, Mapping[str, Any]], call: Mapping[str, Any]) -> int | None:
    """Return the key of the problem whose sizes are nearest to a call's; None if all differ in what is no size.

    Of those that are equally near it is that of the smaller sizes, whatever their order.
    """
    far = {i: distance(problem, call) for i, problem in problems.items()}
    near = [i for i, each in far.items() if each < math.inf]
    return min(near, key=lambda i: (far[i], _sizes_of(problems[i]), i), default=None)


def _sizes_of(problem: Mapping[str, Any]) -> list[float]:
    return [value for _, value in sorted(problem.items()) if type(value) in (int, float)]
