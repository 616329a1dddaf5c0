"""Jobs: the engine sends them to workers, which pass them to their processes. Each job names the type of its answer.

Jobs travel as msgpack, in one tagged union, from the engine to the process that does the work. If the process is on
another machine, the jobs pass through an agent.
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
        """The job's name, such as ``measure``."""
        return _tag(type(self).__name__)


def decoded(job: Job[A], answer: bytes) -> A:
    """Decode the answer to `job`. Raises `RemoteError` if the bytes are not a valid answer."""
    [kind] = get_args(type(job).__orig_bases__[0])  # type: ignore[attr-defined]
    try:
        decoded_answer: A = msgspec.msgpack.decode(answer, type=kind)
    except msgspec.MsgspecError as error:
        raise RemoteError(f"the worker sent an invalid reply to {job.name!r}: {error}") from error
    return decoded_answer


# ---- for compile workers

HOPELESS = "compiling took more than {limit_s:g} s, far longer than other compiles"
"""The message of a compile that exceeded `BuildJob.limit_s`."""


class GroupFailed(msgspec.Struct, frozen=True, tag="group failed"):
    """A group that could not be elaborated or built as a whole. Its parts may be fine, so they are tried again.

    `doubt`: why the members may not be at fault; empty if a member is. With a doubt, the whole group is built again.
    """

    message: str
    doubt: str = ""


class ElaborateJob(Job[list[Elaborated | Failure] | GroupFailed], frozen=True):
    """Elaborate `candidates`. The answer has results for the first one or more of them, in order.

    `digests`: answer with `ir_digest` instead of facts. If a failure has a `doubt`, the candidate may not be at fault.
    """

    candidates: tuple[Candidate, ...]
    digests: bool = False


class RolesJob(Job[Roles | Failure], frozen=True):
    """Elaborate `candidate`, and find the roles of its parameters."""

    candidate: Candidate


class LowerJob(Job[Lowered | Failure], frozen=True):
    """Lower `candidate`. After a crash or a missed deadline, the answer is a `Failure`, and a fresh process takes over.

    If a failure has a `doubt`, the engine lowers the candidate again. `anew`: ignore lowerings of earlier runs. Like
    all jobs, raises `MachineError` if the machine lacks memory or disk space for a long time.
    """

    candidate: Candidate
    anew: bool = False


class FindJob(Job[Artifact | None], frozen=True):
    """Look up an artifact with the same code in the artifact store. The answer is None if there is none."""

    lowered: Lowered


class BuildJob(Job[list[Artifact | Failure] | GroupFailed], frozen=True):
    """Compile `group` into one library. The answer has an entry for each member, in order.

    `plain`: do not use cicc. `limit_s`: seconds after which the compile is ``hopeless``; None if only the settings'
    deadline applies. The worker sets `path`, the library's file, and `by`, the compilers for CUDA: with
    ``both``, nvcc compiles, and meanwhile cicc's code for the first member is compared with nvcc's.
    """

    group: tuple[Lowered, ...]
    plain: bool = False
    limit_s: float | None = None
    path: str = ""
    by: Literal["cicc", "nvcc", "both"] = "nvcc"


class CompareJob(Job[Compared | Failure], frozen=True):
    """Compile `candidate` with nvcc, and compare the result with the library that cicc built.

    The comparison is kept for the compiler state. The worker sets `path`, the file of nvcc's library. Raises
    `WorkerLost` if the worker ends and the candidate is not at fault.
    """

    candidate: Candidate
    built: Artifact
    path: str = ""


CompileJob = ElaborateJob | RolesJob | LowerJob | FindJob | BuildJob | CompareJob


# ---- for device workers


class Started(msgspec.Struct, frozen=True):
    """A device whose process is ready. `stream`: as in `DeviceReady`."""

    device: DeviceInfo
    stream: int = 0


class StartJob(Job[Started], frozen=True):
    """Start the device's process and make its context.

    If an earlier process had made inputs, the new process makes them again, so that it can measure. Raises
    `WorkerError`."""


class Prepared(msgspec.Struct, frozen=True):
    """The reference's timing, if it was timed, and `loaded_as`, the fingerprint of the workload in this process."""

    reference: Timing | None
    loaded_as: str = ""


class PrepareJob(Job[Prepared], frozen=True):
    """Make the inputs for a kernel of `params` and run the reference. `timed`: also time it.

    Raises `WorkloadError` if the user's functions fail.
    """

    params: tuple[KernelParam, ...]
    roles: Roles
    timed: bool = True


class MeasureJob(Job[Measurement | Failure], frozen=True):
    """Check and time a candidate. If a failure kills the process, the worker is no longer `alive`.

    `best_ms`: the best latency so far, so that a clearly slower candidate gets few samples; None to take all samples.
    Raises `WorkerLost` if the process ends for another reason, and `ServerLost` if all processes end.
    """

    artifact: Artifact
    roles: Roles
    best_ms: float | None = None


class Finals(msgspec.Struct, frozen=True):
    """The finalists' timings, in the given order, and the reference's timing if it took part.

    `failures`: finalists whose outputs were wrong after they were timed.
    """

    entries: tuple[FinalEntry, ...]
    reference: Timing | None
    failures: tuple[Failure, ...] = ()
    memory_bytes: int = 0
    """See `Measurement`."""


class Bits(msgspec.Struct, frozen=True):
    """Digests of each artifact's outputs, one for each seed; empty if the inputs are not drawn."""

    digests: tuple[tuple[str, ...], ...]


class BitsJob(Job[Bits], frozen=True):
    """Call each of `artifacts` once with inputs drawn from each of `seeds`, unless the user gives the inputs.

    Raises `WorkerError` if a call fails. The process then counts as lost, because it is unknown which artifact failed.
    """

    artifacts: tuple[Artifact, ...]
    roles: Roles
    seeds: tuple[int, ...]


class FinalJob(Job[Finals], frozen=True):
    """Time `artifacts`, and the reference if there is one, in turn. Sample r of each is from round r of `rounds`.

    Then each is checked again; a wrong result is a failure. If a failure kills the process, the worker is not `alive`.
    """

    artifacts: tuple[Artifact, ...]
    roles: Roles
    rounds: int


DeviceJob = StartJob | PrepareJob | MeasureJob | BitsJob | FinalJob
