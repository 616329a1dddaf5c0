"""What the parent and its workers say to each other, as msgpack. Between a program and its own processes only."""

from __future__ import annotations

import msgspec

from atune.model.artifact import Artifact, Failure, Lowered, StaticFacts
from atune.model.candidate import Candidate, Config
from atune.model.device import DeviceInfo, Target
from atune.model.measurement import FinalEntry, Timing
from atune.model.settings import BenchmarkSettings, CompileSettings
from atune.workload.listing import Listing
from atune.workload.sources import Module
from atune.workload.workload import WorkloadRef, WorkloadSpec


class Session(msgspec.Struct, frozen=True):
    """Everything a worker is told up front. `device`: the worker's name in a device's process, else empty."""

    ref: WorkloadRef
    target: Target
    compile: CompileSettings
    benchmark: BenchmarkSettings
    run_dir: str
    device: str = ""
    accelerators: tuple[str, ...] = ()
    """Names of those in effect, in the order in which they wrap each other."""


class Described(msgspec.Struct, frozen=True):
    """What the first worker of a run learned of the workload, and the user's modules that it read for that.

    `spec`: None where it was not asked for.
    """

    spec: WorkloadSpec | None
    modules: dict[str, Module]


class Discovery(msgspec.Struct, frozen=True):
    """The target that ``auto`` stands for here, the devices to measure on, and what can be used there."""

    target: Target
    devices: tuple[DeviceInfo, ...]
    cuda_python: bool = False
    """Whether the package that tilelang's own nvrtc backend needs is there."""
    accelerators: tuple[str, ...] = ()
    """``name@version`` of those that can be used here, in the order in which they wrap each other."""
    unused: dict[str, str] = {}
    """Why the others cannot, by name."""


class LoadSpace(msgspec.Struct, frozen=True):
    """A workload to load before its space is asked for. `described`: whether its description is wanted, too.

    The answer is the description but for the space where it is wanted, and the user's modules that were read.
    """

    ref: WorkloadRef
    described: bool
    deadline_s: float


class SpacePart(msgspec.Struct, frozen=True):
    """Some more of a space's configurations; with the last of them, all else that describes the space."""

    configs: tuple[Config, ...]
    listing: Listing | None


class LookUp(msgspec.Struct, frozen=True):
    """Places of a large space whose candidates are wanted."""

    places: tuple[int, ...]
    deadline_s: float


class RankJob(msgspec.Struct, frozen=True):
    """A user's prior, as `ship_function` packs it, and the candidates that it is asked of: how they are configured,
    and what is known of them."""

    prior: bytes
    candidates: dict[int, tuple[Config, StaticFacts]]


class BuildJob(msgspec.Struct, frozen=True):
    """A group to compile, and the file its library goes to.

    `service`: whether the compile service is there to use. `exact`: whether the code must be what tilelang's own
    compile makes of each kernel alone.
    """

    group: tuple[Lowered, ...]
    path: str
    service: bool = False
    exact: bool = False


class ProofJob(msgspec.Struct, frozen=True):
    """A measured candidate to compile once more with every accelerator off, into the library `path`."""

    candidate: Candidate
    measured: Artifact
    path: str


class ServiceReady(msgspec.Struct, frozen=True):
    """Whether the compile service compiles, why it does not, and the seconds that parsing the headers took."""

    ok: bool
    reason: str = ""
    header_s: float = 0.0


class Begin(msgspec.Struct, frozen=True):
    """The device of a new process. `warm`: it will stand by, so everything that it will need is loaded already."""

    device: DeviceInfo
    warm: bool = False


class Prepare(msgspec.Struct, frozen=True):
    """Make the inputs for `artifact`'s parameters and run the reference; `timed`: time it, too."""

    artifact: Artifact
    timed: bool


class Prepared(msgspec.Struct, frozen=True):
    """The reference's timing, where it was timed, and the memory the device has left; None on the CPU.

    `loaded_as`: the fingerprint of the workload in this process.
    """

    reference: Timing | None
    free_bytes: int | None = None
    loaded_as: str = ""


class Neighbours(msgspec.Struct, frozen=True):
    """Ask who else uses the GPU `uuid`. `program`: the process that the run belongs to."""

    program: int
    uuid: str
    idle: bool = False
    """Nothing of the run computes on it just now."""


class Neighbour(msgspec.Struct, frozen=True):
    """A process of somebody else on a GPU. `user`: whose it is, empty for the run's own user."""

    pid: int
    name: str
    user: str = ""
    memory_bytes: int | None = None

    def __str__(self) -> str:
        whose = f" of user {self.user}" if self.user else ""
        memory = "" if self.memory_bytes is None else f", {self.memory_bytes >> 20} MiB"
        return f"process {self.pid}{whose} ({self.name}{memory})"


class Around(msgspec.Struct, frozen=True):
    """Who else uses a GPU.

    `busy_percent`: its utilisation, where nobody can be named because the list is another namespace's, and the run
    itself computes nothing.
    """

    neighbours: tuple[Neighbour, ...] = ()
    busy_percent: int | None = None


class Measure(msgspec.Struct, frozen=True):
    """A candidate to check and time. `best_ms`: latency of the best so far, by a first timing on an equal device."""

    artifact: Artifact
    best_ms: float | None = None


class Final(msgspec.Struct, frozen=True):
    """Finalists to time in turn, how many rounds, and whether the reference takes part."""

    artifacts: tuple[Artifact, ...]
    rounds: int
    with_reference: bool = True


class Finals(msgspec.Struct, frozen=True):
    """The finalists' timings, in the order they were given, and the reference's where it was timed.

    `failures`: of finalists that were found wrong once they had been timed.
    """

    entries: tuple[FinalEntry, ...]
    reference: Timing | None
    failures: tuple[Failure, ...] = ()
