"""Why outputs probably differ from the reference's: what a mismatch's message says beside the figures."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from atune.stages.measure.check import Expected, Mismatch, bits_of, compare, expected_outputs
from atune.stages.measure.inputs import Arguments
from atune.workload.workload import Workload

FILLS = (0x3E, 0x3F, 0x3E)
"""Bytes that make a small number in every format. Arithmetic changes such numbers; NaN times 2 stays NaN. The last call
is on what the first was on: a kernel that then leaves something else is not deterministic."""
LEAST_SHARE = 0.1
"""The least number of elements that depend on the output's old values, for each one that differs between equal calls.
Results of atomic adds may differ so, in their last bits."""


class Causes:
    """Finds likely causes for one workload on one device. Findings about its reference are kept between candidates."""

    def __init__(self, work: Workload, arguments: Arguments, expected: Expected) -> None:
        self.expected = expected
        self._work, self._arguments = work, arguments
        self._reference: str | None = None

    def named(self, wrong: Mismatch, call: Callable[[], None]) -> Mismatch:
        """Return `wrong` with the likely causes in its message. `call` calls the kernel again, and waits.

        The outputs may be overwritten. A check of the user's own has its own words, and is left alone.
        """
        if self._work.check is not None or not self.expected:
            return wrong
        if wrong.kind == "mismatch":
            causes = filter(None, (self._transposed(), self._of_reference()))
            return msgspec.structs.replace(wrong, message="; ".join([wrong.message, *causes]))
        if wrong.kind not in ("unwritten", "non_finite"):
            return wrong
        position = updated_in_place(self._arguments, call)
        return wrong if position is None else Mismatch("mismatch", _in_place(position, self._arguments))

    def _transposed(self) -> str:
        if any(tensor.dim() < 2 for tensor in self.expected.values()):
            return ""
        turned = {i: tensor.transpose(-2, -1) for i, tensor in self.expected.items()}
        wrong, _ = compare(self._work, self._arguments, turned)
        return "" if wrong is not None else "it is the reference's output transposed: swap the last two axes of one"

    def _of_reference(self) -> str:
        if self._reference is None:
            self._reference = "; ".join(filter(None, (self._not_deterministic(), self._of_another_dtype())))
        return self._reference

    def _not_deterministic(self) -> str:
        again = expected_outputs(self._work, self._arguments)
        alike = again.keys() == self.expected.keys()
        if alike and compare(self._work, self._arguments, self.expected, outputs=again)[0] is None:
            return ""
        return "the reference gives other outputs when it runs again: it is not deterministic"

    def _of_another_dtype(self) -> str:
        for i, tensor in self.expected.items():
            ours = self._arguments.values[i].dtype
            if tensor.dtype != ours:
                return f"the reference gives {_name(tensor.dtype)} and the kernel {_name(ours)}"
        return ""


def updated_in_place(arguments: Arguments, call: Callable[[], None]) -> int | None:
    """Return the output whose result depends on what it held before the call; None where there is none.

    `call` is called on outputs that hold one number, then another, and then the first again. Elements that differ
    between the first and the last call tell nothing, and against it where nearly all do.
    """
    held, left = [], []
    positions = [i for i in arguments.out_idx if i not in arguments.zero]
    for fill in FILLS:
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


def _in_place(position: int, arguments: Arguments) -> str:
    others = [i for i in arguments.out_idx if i != position]
    return (
        f"output {arguments.out_idx.index(position)} is updated in place: the result depends on what it held before the"
        f" call. Say what that is: zero=[{position}] for zeros, or out_idx={others} to make it an input, which the "
        "reference then updates in place, too"
    )


def _name(dtype: Any) -> str:
    return str(dtype).removeprefix("torch.")
