"""The protocol of observers, which note more about a measurement than its time."""

from __future__ import annotations

from typing import TypeVar

from atune.model.artifact import Failure
from atune.model.jobs import Finals
from atune.model.measurement import Measurement, Timing
from atune.stages.arguments import KernelArguments

Answer = TypeVar("Answer", bound="Measurement | Finals | Failure")


class Observer:
    """Observes the measurements of a device's process. By default, a method does nothing and returns its argument."""

    def before(self) -> None:
        """Prepare for the calls of a candidate, which come next."""

    def after_call(self, arguments: KernelArguments) -> None:
        """Note a call of the candidate, whose outputs in `arguments` are correct."""

    def after(self, timing: Timing) -> Timing:
        """Return `timing` with more of its conditions added. Its samples were taken just now."""
        return timing

    def record(self, answer: Answer) -> Answer:
        """Return the answer to a job with the observations added."""
        return answer
