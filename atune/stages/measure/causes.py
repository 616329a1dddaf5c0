"""The likely cause of wrong outputs, which other calls of the kernel may tell."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from atune.stages.measure.arguments import KernelArguments
from atune.stages.measure.check import Expected, Mismatch, compare
from atune.stages.measure.tensors import bits_of
from atune.workload.workload import Workload

FILLS = (0x3E, 0x3F, 0x3E)
"""Bytes that make a small number in every format. Arithmetic changes such numbers; NaN times 2 stays NaN. The last call
is on what the first was on: a kernel that then leaves something else is not deterministic."""
LEAST_SHARE = 0.1
"""The least number of elements that depend on the output's old values, for each one that differs between equal calls.
Results of atomic adds may differ so, in their last bits."""


def with_cause(
    wrong: Mismatch, work: Workload, arguments: KernelArguments, expected: Expected | None, call: Callable[[], None]
) -> Mismatch:
    """Return `wrong` with the likely cause in its message. `call` calls the kernel again, and waits.

    The outputs may be overwritten. A check of the user's own has its own words, and is left alone.
    """
    if work.check is not None or (not expected and wrong.kind != "unwritten"):
        return wrong
    if expected and wrong.kind == "mismatch":
        causes = [*filter(None, (_transposed(work, arguments, expected), _of_another_dtype(arguments, expected)))]
        message = _added_to(work, arguments, expected, call) or "; ".join([*causes, wrong.message])
        wrong = msgspec.structs.replace(wrong, message=message)
    position = updated_in_place(arguments, call)
    return wrong if position is None else Mismatch("mismatch", _in_place(position, arguments))


def _transposed(work: Workload, arguments: KernelArguments, expected: Expected) -> str:
    if any(tensor.dim() < 2 for tensor in expected.values()):
        return ""
    turned = {i: tensor.transpose(-2, -1) for i, tensor in expected.items()}
    wrong, _ = compare(work, arguments, turned, {})
    return "" if wrong is not None else "it is the reference's output transposed: swap the last two axes of one"


def _of_another_dtype(arguments: KernelArguments, expected: Expected) -> str:
    for i, tensor in expected.items():
        ours = arguments.values[i].dtype
        if tensor.dtype != ours:
            return f"the reference gives {_name(tensor.dtype)} and the kernel {_name(ours)}"
    return ""


def _added_to(work: Workload, arguments: KernelArguments, expected: Expected, call: Callable[[], None]) -> str:
    """Say that the result is right if inputs that the kernel writes into are zero before the call; empty if not."""
    inputs = [i for i in arguments.writes if i in expected and i not in arguments.zero]
    if not inputs:
        return ""
    arguments.restore_inputs()
    arguments.fill_outputs(FILLS[0])
    for i in inputs:
        arguments.values[i].zero_()
    call()
    if compare(work, arguments, expected, {})[0] is not None:
        return ""
    return (
        f"parameter {inputs[0]} is updated in place, and has the reference's result where it begins as zeros: "
        f"zero={inputs} makes it so. Else the reference begins with what the parameter holds"
    )


def updated_in_place(arguments: KernelArguments, call: Callable[[], None]) -> int | None:
    """Return the output whose result depends on what it held before the call; None where there is none.

    `call` is called on outputs that hold one number, then another, and then the first again. Elements that differ
    between the first and the last call tell nothing, and against it where nearly all do.
    """
    held, left = [], []
    positions = [i for i in arguments.out_idx if i not in arguments.zero]
    for fill in FILLS if positions else ():
        arguments.restore_inputs()
        arguments.fill_outputs(fill)
        held.append({i: bits_of(arguments.values[i]).clone() for i in positions})
        call()
        left.append({i: bits_of(arguments.values[i]).clone() for i in positions})
    for i in positions:
        written = (left[0][i] != held[0][i]) & (left[1][i] != held[1][i])
        again = left[0][i] == left[2][i]
        depending, noisy = written & again & (left[0][i] != left[1][i]), written & ~again
        if int(depending.sum()) > LEAST_SHARE * int(noisy.sum()):
            return i
    return None


def _in_place(position: int, arguments: KernelArguments) -> str:
    others = [i for i in arguments.out_idx if i != position]
    return (
        f"output {arguments.out_idx.index(position)} is updated in place: the result depends on what it held before the"
        f" call. Say what that is: zero=[{position}] for zeros, or out_idx={others} to make it an input, which the "
        "reference then updates in place, too"
    )


def _name(dtype: Any) -> str:
    return str(dtype).removeprefix("torch.")
