"""The engine's protocols. `atune.workers` implements these protocols with processes, and `atune.testing` with fakes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Protocol

import msgspec

from atune.model.device import DeviceInfo, Target
from atune.model.jobs import A, Job
from atune.workload.workload import WorkloadSpec


class CompileHints(msgspec.Struct, frozen=True):
    """Hints from the compilers to the scheduler."""

    builds: bool = True
    """Whether groups may start. If not, building will soon become so cheap that even an idle device should wait."""
    resting: int = 0
    """Number of workers that start no new job, because measuring devices need their cores."""
    alike: int = 0
    """Number of equal lowering failures that end a run in which nothing was lowered; 0 to never end it. If the default
    configuration fails in the same way, two failures are enough."""


class CompileWorker(Protocol):
    """A worker that does one compile job at a time. Cancelling `run` kills the processes that the job started."""

    name: str

    async def run(self, job: Job[A]) -> A:
        """Do a job for compile workers, and return its answer. The job's docstring names the errors that it raises."""


class DeviceWorker(Protocol):
    """A device's process, which does one job at a time. Cancelling `run` kills the process."""

    name: str

    @property
    def alive(self) -> bool:
        """Whether the process runs. The process may end at any time."""

    async def run(self, job: Job[A]) -> A:
        """Do a job for device workers, and return its answer. The job's docstring names the errors that it raises."""


def ignored(*_: object) -> None:
    """Do nothing. This is the default callback, for callers that need no messages."""


class Machine(Protocol):
    """Compilers and devices of one run. The clock of `sleep` is the clock of the workers' jobs."""

    def open(
        self, warn: Callable[[str], None] = ignored, wake: Callable[[], None] = ignored
    ) -> AbstractAsyncContextManager[None]:
        """Start the compilers and devices. Leaving the context kills every process.

        The machine calls `warn` with messages that belong to no candidate, and `wake` when `hints` may change.
        """

    async def describe(self, *, seed: int = 0) -> WorkloadSpec:
        """Describe the workload and list its space. From a large space, `seed` draws a sample."""

    async def discover(self) -> tuple[Target, list[DeviceInfo]]:
        """Resolve target ``auto`` and find the devices. Raises `TargetError` if a device or target is missing."""

    def compile_workers(self) -> Sequence[CompileWorker]: ...

    async def prepare(self, candidates: int) -> None:
        """Decide how to compile this number of `candidates`. Called once, between `discover` and `compile_workers`."""

    def hints(self, measuring: int) -> CompileHints:
        """Return the current hints for the scheduler. `measuring`: the number of devices that have a candidate."""

    def device_workers(self) -> Sequence[DeviceWorker]: ...

    async def sleep(self, seconds: float, /) -> None:
        """Sleep for `seconds` of the machine's time, which passes at once on a fake machine."""

    def versions(self) -> dict[str, str]: ...
