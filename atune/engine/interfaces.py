"""The engine's protocols. `atune.workers` implements them with processes, `atune.testing` with scripted fakes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Literal, Protocol

import msgspec

from atune.model.device import DeviceInfo, Target
from atune.model.jobs import A, Job
from atune.workload.workload import WorkloadSpec


class CompileHints(msgspec.Struct, frozen=True):
    """Hints from the compilers to the scheduler."""

    builds: Literal["all", "first", "none"] = "all"
    """Which groups may start. ``first``: only those that devices wait for, because building will soon be cheaper.
    ``none``: building will be cheaper at once."""
    resting: int = 0
    """How many workers start nothing new, because measuring devices need their cores."""
    alike: int = 0
    """How many equal lowering failures end a run that has lowered nothing; 0: never. Two suffice if the default
    configuration's failure is among them."""


class CompileWorker(Protocol):
    """One compile worker. It takes one job at a time; cancelling `run` kills what the job started."""

    name: str

    async def run(self, job: Job[A]) -> A:
        """Do one of `atune.model.jobs.CompileJob`; each says what it raises."""


class DeviceWorker(Protocol):
    """One device's process. It takes one job at a time; cancelling `run` kills the process."""

    name: str

    @property
    def alive(self) -> bool:
        """Whether the process runs; it may end at any time."""

    async def run(self, job: Job[A]) -> A:
        """Do one of `atune.model.jobs.DeviceJob`; each says what it raises."""


def ignored(*_: object) -> None:
    """Do nothing: for a caller that needs no message."""


class Machine(Protocol):
    """Compilers and devices of one run."""

    def open(
        self, warn: Callable[[str], None] = ignored, wake: Callable[[], None] = ignored
    ) -> AbstractAsyncContextManager[None]:
        """Start the compilers and devices; leaving kills every process.

        `warn` is called with messages for the user that no outcome carries; `wake`, when `hints` may have changed.
        """

    async def describe(self, *, seed: int = 0) -> WorkloadSpec:
        """Describe the workload: list its space, or of a large one what `seed` draws."""

    async def discover(self) -> tuple[Target, list[DeviceInfo]]:
        """Resolve target ``auto`` and find the devices. Raises `TargetError` if a device or target is missing."""

    def compile_workers(self) -> Sequence[CompileWorker]: ...

    async def prepare(self, candidates: int) -> None:
        """Choose how a run of `candidates` compiles. Called once, after `discover` and before `compile_workers`."""

    def hints(self, measuring: int) -> CompileHints:
        """Return the current hints for the scheduler, while `measuring` devices have a candidate."""

    def device_workers(self) -> Sequence[DeviceWorker]: ...

    def versions(self) -> dict[str, str]: ...
