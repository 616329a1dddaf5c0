"""Jobs: what the engine asks of a worker, and a worker of its process. Each names the type of its answer.

One tagged union, as msgpack, from the engine to the process that does the work, through an agent where that is on
another machine.
"""

from __future__ import annotations

from typing import Generic, TypeVar, get_args

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
    """Work for one worker. `A` is the type of the answer."""

    @property
    def name(self) -> str:
        """The job's name, such as ``measure``."""
        return _tag(type(self).__name__)


def decoded(job: Job[A], answer: bytes) -> A:
    """Return the answer to `job` from the bytes that came back. Raises `RemoteError` if they are none."""
    [kind] = get_args(type(job).__orig_bases__[0])  # type: ignore[attr-defined]
    try:
        found: A = msgspec.msgpack.decode(answer, type=kind)
    except msgspec.MsgspecError as error:
        raise RemoteError(f"its process answered what is no answer to {job.name!r}: {error}") from error
    return found


# ---- of compile workers

HOPELESS = "compiling ran past {limit_s:g} s, far longer than the others' compiles took"
"""Why a compile that ran past its `BuildJob.limit_s` failed."""


class GroupFailed(msgspec.Struct, frozen=True, tag="group failed"):
    """A group of several could not be elaborated or built as a whole: its parts may be fine, and are tried again.

    `doubt`: why no member may be at fault, so that the whole group is built again; empty if a member is.
    """

    message: str
    doubt: str = ""


class ElaborateJob(Job[list[Elaborated | Failure] | GroupFailed], frozen=True):
    """Elaborate `candidates`. The answer has the first one or more of them, in order.

    `digests`: answer with their `ir_digest` in place of their facts. A failure with a `doubt` may not be the
    candidate's fault.
    """

    candidates: tuple[Candidate, ...]
    digests: bool = False


class RolesJob(Job[Roles | Failure], frozen=True):
    """Elaborate `candidate`, and find the roles of its parameters."""

    candidate: Candidate


class LowerJob(Job[Lowered | Failure], frozen=True):
    """Lower `candidate`. A crash or a missed deadline is a `Failure`; a fresh process takes over.

    A failure with a `doubt` may not be the candidate's fault: the engine lowers it again. `anew`: ignore what earlier
    runs lowered. Raises `MachineError` if the machine lacks memory or disk for long, as all jobs do.
    """

    candidate: Candidate
    anew: bool = False


class FindJob(Job[Artifact | None], frozen=True):
    """Return the artifact of the same code from the artifact store; None if there is none."""

    lowered: Lowered


class BuildJob(Job[list[Artifact | Failure] | GroupFailed], frozen=True):
    """Compile `group` into one library. The answer has each member, in order.

    `plain`: cicc must not take part. `limit_s`: seconds after which the compile is ``hopeless``; None: only the
    settings' deadline counts. `path` and `service` are the worker's: the library's file, and whether the compile
    service is available.
    """

    group: tuple[Lowered, ...]
    plain: bool = False
    limit_s: float | None = None
    path: str = ""
    service: bool = False


class CompareJob(Job[Compared | Failure], frozen=True):
    """Compile `candidate` by nvcc, and compare it with the library that cicc built.

    The result is remembered for its compiler state. `path` is the worker's: the plain library's file. Raises
    `WorkerLost` if the worker ends through no fault of the candidate.
    """

    candidate: Candidate
    built: Artifact
    path: str = ""


CompileJob = ElaborateJob | RolesJob | LowerJob | FindJob | BuildJob | CompareJob


# ---- of a device's worker


class Started(msgspec.Struct, frozen=True):
    """A device whose process is ready. `stream`: as in `DeviceReady`."""

    device: DeviceInfo
    stream: int = 0


class StartJob(Job[Started], frozen=True):
    """Start the device's process and make its context.

    If an earlier process had inputs, they are made again, so that the new one can measure. Raises `WorkerError`.
    """


class Prepared(msgspec.Struct, frozen=True):
    """The reference's timing, if it was timed. `loaded_as`: the fingerprint of the workload in this process."""

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
    """Check and time one candidate. After a failure that killed the process, the worker is not `alive`.

    `best_ms` is the best latency so far: a clearly slower candidate gets few samples. None takes all samples. Raises
    `WorkerLost` if the process ended for another reason, and `ServerLost` if all processes did.
    """

    artifact: Artifact
    roles: Roles
    best_ms: float | None = None


class Finals(msgspec.Struct, frozen=True):
    """The finalists' timings, in the given order, and the reference's timing if it took part.

    `failures`: finalists whose outputs turned out wrong after they were timed.
    """

    entries: tuple[FinalEntry, ...]
    reference: Timing | None
    failures: tuple[Failure, ...] = ()
    memory_bytes: int = 0
    """See `Measurement`."""


class Bits(msgspec.Struct, frozen=True):
    """Digests of the outputs of each artifact, one for each seed; none where the inputs are not drawn."""

    digests: tuple[tuple[str, ...], ...]


class BitsJob(Job[Bits], frozen=True):
    """Call each of `artifacts` once on inputs drawn with each of `seeds`; given inputs are not drawn, nor called on.

    Raises `WorkerError` if a call fails. Nothing tells which artifact did it, so the process counts as lost.
    """

    artifacts: tuple[Artifact, ...]
    roles: Roles
    seeds: tuple[int, ...]


class FinalJob(Job[Finals], frozen=True):
    """Time `artifacts`, and the reference if there is one, in turn: sample r of each is from round r of `rounds`.

    Then each is checked again; a wrong result is a failure. If it killed the process, the worker is not `alive`.
    """

    artifacts: tuple[Artifact, ...]
    roles: Roles
    rounds: int


DeviceJob = StartJob | PrepareJob | MeasureJob | BitsJob | FinalJob
