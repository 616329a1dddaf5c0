"""The protocol by which a measurement is observed beside its time."""

from __future__ import annotations

from typing import TypeVar

from atune.model.artifact import Failure
from atune.model.jobs import Finals
from atune.model.measurement import Measurement, Timing
from atune.stages.arguments import KernelArguments

Answer = TypeVar("Answer", bound="Measurement | Finals | Failure")


class Observer:
    """Observes what a device's process measures. By itself a method does nothing, and returns what it is given."""

    def before(self) -> None:
        """A candidate is going to be called."""

    def after_call(self, arguments: KernelArguments) -> None:
        """The candidate was called once more, and what it wrote into `arguments` is right."""

    def after(self, timing: Timing) -> Timing:
        """Samples were taken just now. Returns `timing`, which they make, with more of its conditions."""
        return timing

    def record(self, answer: Answer) -> Answer:
        """Return the answer to a job with what was observed."""
        return answer
