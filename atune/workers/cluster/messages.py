"""Messages between the engine's program and the agents on the nodes, as msgpack: jobs, their answers, and errors."""

from __future__ import annotations

import msgspec

from atune import errors
from atune.model.candidate import Config
from atune.model.jobs import CompileJob, DeviceJob, Job
from atune.model.settings import BenchmarkSettings, CompileSettings
from atune.workers.cluster.libraries import Library
from atune.workers.processes.messages import Discovery
from atune.workload.workload import WorkloadRef, WorkloadSpec


class Opening(msgspec.Struct, frozen=True):
    """The first message to an agent: the work, the settings, and how many of the node's cores it may use."""

    workload: WorkloadRef
    target: str
    devices: tuple[str, ...]
    compile: CompileSettings
    benchmark: BenchmarkSettings
    cores: int


class DescribeJob(Job[WorkloadSpec], frozen=True):
    """Describe the workload; see `Machine.describe`."""

    seed: int = 0


class NeighboursJob(Job[list[Config]], frozen=True):
    """Find neighbours in a large space; see `Machine.neighbours`."""

    configs: tuple[Config, ...]


class NodeFound(msgspec.Struct, frozen=True):
    """What a node has for the run. `compilers`: the number of its compile workers."""

    discovery: Discovery
    compilers: int


class DiscoverJob(Job[NodeFound], frozen=True):
    """Find the node's devices. `target`: the run's, with which only `devices` take part; empty: as in `Opening`.

    `fingerprint`: that of the workload in the run's first worker. The node refuses workers that load another one.
    """

    fingerprint: str
    target: str = ""
    devices: tuple[str, ...] = ()


class PlanJob(Job[None], frozen=True):
    """Make the workers, which use `accelerators`. `no_service`: why these do not include the compile service."""

    accelerators: tuple[str, ...]
    no_service: str


class NoticesJob(Job[list[str]], frozen=True):
    """Return messages for the user, once there are some; after `agent.NOTICE_S` at the latest."""


NodeJob = DescribeJob | NeighboursJob | DiscoverJob | PlanJob | NoticesJob


class Question(msgspec.Struct, frozen=True):
    """A job for an agent. `worker`: the compile worker's number or the device's id; empty for the node itself.

    `libraries`: those that the job's artifacts name by digest and the node has not received yet.
    """

    job: CompileJob | DeviceJob | NodeJob
    worker: int | str = ""
    libraries: tuple[Library, ...] = ()


class Answer(msgspec.Struct, frozen=True, tag="answer"):
    """The answer to a job, as msgpack. Artifacts in `body` name their libraries by digest; `libraries` has these.

    `alive`: whether the device's process runs, if a device answered.
    """

    body: bytes
    libraries: tuple[Library, ...] = ()
    alive: bool = False


class Raised(msgspec.Struct, frozen=True, tag="raised"):
    """The exception that a job ended with. `outside`: that of `WorkerLost`."""

    kind: str
    message: str
    detail: str = ""
    outside: bool = False
    alive: bool = False

    def error(self) -> errors.AtuneError:
        """Return the exception."""
        return errors.error_of(self.kind, self.message, self.detail, outside=self.outside)


Reply = Answer | Raised


def raised(error: Exception, *, alive: bool = False) -> Raised:
    """Return `error` as it travels."""
    known = isinstance(error, errors.AtuneError)
    return Raised(
        kind=type(error).__name__,
        message=errors.message_of(error) if known else errors.name_and_message(error),
        detail=getattr(error, "detail", "") or ("" if known else errors.traceback_of(error)),
        outside=getattr(error, "outside", False),
        alive=alive,
    )
