"""What the engine asks of the stages. `atune.local` keeps it with processes, `atune.testing` with scripted fakes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Literal, Protocol

import msgspec

from atune.model.artifact import Artifact, Built, Failure, Lowered, Proof
from atune.model.candidate import Candidate
from atune.model.device import DeviceInfo, Target
from atune.model.measurement import FinalEntry, Measurement, Timing
from atune.workload.workload import WorkloadSpec


class CompileHints(msgspec.Struct, frozen=True):
    """What the compilers tell the scheduler."""

    row: int = 1
    """Candidates that follow each other and that one worker lowers one after the other: they may share work."""
    builds: Literal["all", "first", "none"] = "all"
    """Which groups may be begun: ``first`` are those that devices wait for; building will soon be cheaper."""
    resting: int = 0
    """Workers that start nothing new: devices that measure need their cores."""


class CompileWorker(Protocol):
    """One compile worker. One call at a time; cancelling a call kills what it started."""

    name: str

    async def lower(self, candidate: Candidate) -> Lowered | Failure:
        """Lower `candidate`. A crash or a deadline is a `Failure`, and the worker has a fresh worker afterwards.

        One with a `doubt` may not be the candidate's own: the engine lowers it once more. `build` answers so, too.
        Raises `MachineError` where the machine is short of something for long, as all methods do.
        """
        ...

    async def find(self, lowered: Lowered) -> Artifact | None:
        """Return the artifact of the same code where an earlier run left it."""
        ...

    async def build(self, group: Sequence[Lowered]) -> list[Built]:
        """Compile `group` into one library: an answer for each member, in order.

        When a whole group of several fails, raises `GroupFailed`; the engine builds it again in parts.
        """
        ...

    async def build_exact(self, candidates: Sequence[Candidate], known: Mapping[int, Lowered]) -> list[Built]:
        """Compile `candidates` as tilelang itself would, where `build` may have done otherwise.

        `known`: by index, what `lower` made of them, where that is at hand; the others are lowered again.
        """
        ...

    async def prove(self, candidate: Candidate, measured: Artifact) -> Proof | Failure:
        """Compile `candidate` with every accelerator off, and compare it with the library that was `measured`.

        Raises `WorkerLost` where that says nothing of the candidate.
        """
        ...


class DeviceWorker(Protocol):
    """One device's process. One call at a time; cancelling a call kills it."""

    name: str

    @property
    def alive(self) -> bool:
        """Whether the process is there; it may end at any time."""
        ...

    @property
    def took_over(self) -> bool:
        """Whether the process stood by before it was needed."""
        ...

    async def start(self) -> DeviceInfo:
        """Start the device's process and make its context, or take the one that stands by. Raises `WorkerError`.

        Where inputs had been made before, for an earlier process, they are made again: it is ready to measure.
        """
        ...

    async def prepare(self, artifact: Artifact) -> Timing | None:
        """Make the inputs, run the reference, and time it. Raises `WorkloadError` where the user's functions fail."""
        ...

    async def measure(self, artifact: Artifact, best_ms: float | None = None) -> Measurement | Failure:
        """Check and time one candidate. After a failure that cost the process, `alive` is false.

        Raises `WorkerLost` where the process ended for another reason, and `ServerLost` where all processes did.

        `best_ms` is the best so far: one that is plainly slower needs few samples. None takes all.
        """
        ...

    async def final(
        self, artifacts: Sequence[Artifact], rounds: int, with_reference: bool = True
    ) -> tuple[list[FinalEntry | Failure], Timing | None]:
        """Time `artifacts` and, if asked for, the reference, in turn: sample r of all is from round r of `rounds`.

        Then each is checked again; one that is wrong now is a failure. Where that cost the process, `alive` is false.
        """
        ...


class Machine(Protocol):
    """Compilers and devices of one run; entering starts them, leaving kills every process."""

    def open(self) -> AbstractAsyncContextManager[None]: ...

    async def describe(self, *, whole: bool = False) -> WorkloadSpec:
        """Describe the workload: list its space, or say how many points a large one has; `whole` lists that, too."""
        ...

    async def look_up(self, places: Sequence[int]) -> Sequence[Candidate | None]:
        """Return the candidates at the first of `places` of a large space, one at least; None for one it refuses."""
        ...

    async def discover(self) -> tuple[Target, list[DeviceInfo]]:
        """Resolve target ``auto`` and find the devices. Raises `TargetError` for what is not there."""
        ...

    def compile_workers(self, candidates: int | None = None) -> Sequence[CompileWorker]:
        """Return the compile workers. `candidates`: how many will be compiled at most, where that is known."""
        ...

    def accelerators(self, candidates: int) -> tuple[tuple[str, ...], Mapping[str, str]]:
        """Decide which accelerators a run of so many candidates uses: ``name@version`` each, and why not the others.

        Asked once, after `discover` and before `compile_workers`.
        """
        ...

    def hints(self, measuring: int) -> CompileHints:
        """Return what scheduling should know now, while `measuring` devices have a candidate."""
        ...

    def on_change(self, wake: Callable[[], None]) -> None:
        """Have `wake` called when `hints` may have changed."""
        ...

    def on_warning(self, warn: Callable[[str], None]) -> None:
        """Have `warn` called with what a user should know of and no outcome tells."""
        ...

    def last_words(self) -> Sequence[str]:
        """Return what a user should know at the run's end, such as that the workload's file is another by now."""
        ...

    def device_workers(self) -> Sequence[DeviceWorker]: ...

    def versions(self) -> dict[str, str]: ...


class GroupFailed(Exception):
    """A group of several could not be built as a whole. Not an error yet: its parts may be fine."""

    def __init__(self, message: str, doubt: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.doubt = doubt
        """Why it may be no member's fault, so that the whole group is built once more; empty where it is."""
