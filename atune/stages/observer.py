"""The protocol of observers. An observer notes facts about a measurement in addition to its time."""

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
        """Prepare for the next candidate, before its first call."""

    def after_call(self, arguments: KernelArguments) -> None:
        """Note a call of the candidate. The outputs of the call, in `arguments`, are correct."""

    def after(self, timing: Timing) -> Timing:
        """Return `timing` with more conditions of the measurement. Called right after the samples were taken."""
        return timing

    def record(self, answer: Answer) -> Answer:
        """Return the answer to a job, with the observations added to it."""
        return answer
