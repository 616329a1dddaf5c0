"""Jobs are sent by the engine to workers, which pass them on to their processes.

The class of a job names the type of its answer. The engine encodes a job as msgpack, in one tagged union, for the
process that does the work. If this process is on another machine, an agent on that machine passes the job on.
"""

from __future__ import annotations

from typing import Generic, Literal, TypeVar, get_args

import msgspec

from atune.errors import RemoteError
from atune.model.artifact import Artifact, Compared, Elaborated, Failure, KernelParam, Lowered, Roles
from atune.model.candidate import Candidate
from atune.model.device import DeviceInfo
from atune.model.measurement import FinalEntry, Measurement, Timing

A = TypeVar("A")


def _tag(name: str) -> str:
    return name.removesuffix("Job").lower()


class Job(msgspec.Struct, Generic[A], frozen=True, tag=_tag):
    """Work for a worker. `A` is the type of the answer."""

    @property
    def name(self) -> str:
        """Name of the job, such as ``measure``."""
        return _tag(type(self).__name__)


def decoded(job: Job[A], answer: bytes) -> A:
    """Decode the answer to `job`. Raises `RemoteError` if the answer is not valid."""
    [kind] = get_args(type(job).__orig_bases__[0])  # type: ignore[attr-defined]
    try:
        decoded_answer: A = msgspec.msgpack.decode(answer, type=kind)
    except msgspec.MsgspecError as error:
        raise RemoteError(f"the worker sent an invalid reply to {job.name!r}: {error}") from error
    return decoded_answer


PAST_COMPILE_TIMEOUT = "{doing} ran past compile_timeout_s={limit_s:g} (--compile-timeout)"
PAST_BENCHMARK_TIMEOUT = "ran past benchmark_timeout_s={limit_s:g} (--timeout) and was killed"
"""The messages about candidates that missed the deadlines in the settings. Each message names the setting's flag."""


# ---- for compile workers

HOPELESS = "compiling took more than {limit_s:g} s, far longer than other compiles"
"""The message about a compilation that took longer than `BuildJob.limit_s`."""


class GroupFailed(msgspec.Struct, frozen=True, tag="group failed"):
    """A group that could not be elaborated or built as a whole, so that its parts are tried separately.

    `doubt`: why the members may be innocent; empty if a member is at fault. After a doubt, the group is built again.
    """

    message: str
    doubt: str = ""


class ElaborateJob(Job[list[Elaborated | Failure] | GroupFailed], frozen=True):
    """Elaborate `candidates`. The answer has one or more results, in order, but may end before the last candidate.

    `digests`: results have `ir_digest` instead of facts. If a failure has a `doubt`, the candidate may not be at fault.
    """

    candidates: tuple[Candidate, ...]
    digests: bool = False


class RolesJob(Job[Roles | Failure], frozen=True):
    """Elaborate `candidate`, and find out the roles of its parameters."""

    candidate: Candidate


class LowerJob(Job[Lowered | Failure], frozen=True):
    """Lower `candidate`. After a crash or a missed deadline, the answer is a `Failure`, and a fresh process takes over.

    If the failure has a `doubt`, the engine lowers the candidate again. `anew`: whether to ignore lowerings from
    earlier runs. Like all jobs, it raises `MachineError` if the machine lacks memory or disk space for a long time.
    """

    candidate: Candidate
    anew: bool = False


class FindJob(Job[Artifact | None], frozen=True):
    """Look up an artifact with the code of `lowered` in the artifact store. If there is none, the answer is None."""

    lowered: Lowered


class BuildJob(Job[list[Artifact | Failure] | GroupFailed], frozen=True):
    """Compile `group` into one library. The answer has an entry for each member of the group, in order.

    `plain`: whether cicc must not be used. `limit_s`: seconds after which the compilation is ``hopeless``; None if only
    the deadline in the settings applies. The worker sets `path` to the library's file, and `by` to the CUDA compiler.
    With ``both``, nvcc compiles the group, while the first member's code from cicc and nvcc is compared.
    """

    group: tuple[Lowered, ...]
    plain: bool = False
    limit_s: float | None = None
    path: str = ""
    by: Literal["cicc", "nvcc", "both"] = "nvcc"


class CompareJob(Job[Compared | Failure], frozen=True):
    """Compile `candidate` with nvcc, and compare the library with the library that cicc built.

    The result of the comparison is kept for cicc's compiler state. The worker sets `path` to the file of nvcc's
    library. Raises `WorkerLost` if the worker ends and the candidate is not at fault.
    """

    candidate: Candidate
    built: Artifact
    path: str = ""


# ---- for device workers


class Started(msgspec.Struct, frozen=True):
    """A device with a process that is ready for work. `stream`: as in `DeviceReady`."""

    device: DeviceInfo
    stream: int = 0


class StartJob(Job[Started], frozen=True):
    """Start a process for the device and create its context.

    If an earlier process had made inputs, the new process makes them again, so that it can measure. Raises
    `WorkerError`."""


class Prepared(msgspec.Struct, frozen=True):
    """`reference`: the reference's timing, if it was timed. `loaded_as`: the workload's fingerprint in this process."""

    reference: Timing | None
    loaded_as: str = ""


class PrepareJob(Job[Prepared], frozen=True):
    """Make the inputs for a kernel with `params`, and run the reference. `timed`: also time it.

    Raises `WorkloadError` if a function of the user fails.
    """

    params: tuple[KernelParam, ...]
    roles: Roles
    timed: bool = True


class MeasureJob(Job[Measurement | Failure], frozen=True):
    """Check and time a candidate. If a failure kills the process, the worker is no longer `alive`.

    `best_ms`: the best latency so far, so that clearly slower candidates get few samples; None to take all samples.
    Raises `WorkerLost` if the process ends without a failure of the candidate, and `ServerLost` if all processes end.
    """

    artifact: Artifact
    roles: Roles
    best_ms: float | None = None


class Finals(msgspec.Struct, frozen=True):
    """Timings of the finalists, in the given order, and of the reference if it took part.

    `failures`: the finalists that gave wrong outputs after they were timed.
    """

    entries: tuple[FinalEntry, ...]
    reference: Timing | None
    failures: tuple[Failure, ...] = ()
    memory_bytes: int = 0
    """See `Measurement`."""


class Bits(msgspec.Struct, frozen=True):
    """For each artifact, the digests of its outputs, one per seed; empty if the user gives the inputs."""

    digests: tuple[tuple[str, ...], ...]


class BitsJob(Job[Bits], frozen=True):
    """Call each of `artifacts` once per seed, with inputs that are drawn with the seed, or with the user's inputs.

    Raises `WorkerError` if a call fails. The process is then treated as lost, because any artifact may be the cause.
    """

    artifacts: tuple[Artifact, ...]
    roles: Roles
    seeds: tuple[int, ...]


class FinalJob(Job[Finals], frozen=True):
    """Time `artifacts`, and the reference if there is one, in `rounds` rounds. Sample r of each timing is from round r.

    After the rounds, each artifact is checked again, and a wrong result is a failure. If a failure kills the process,
    the worker is no longer `alive`.
    """

    artifacts: tuple[Artifact, ...]
    roles: Roles
    rounds: int
