"""Calls to workers: the import paths of the called functions, and the messages, which are encoded as msgpack.

A message passes only between a program and the program's own processes.
"""

from __future__ import annotations

import msgspec

from atune.model.candidate import Config
from atune.model.device import DeviceInfo, Target
from atune.model.settings import BenchmarkSettings, CompileSettings
from atune.workload.pickling import WorkloadRef
from atune.workload.workload import WorkloadSpec

BEGIN = "atune.stages.session:begin"
WRITTEN = "atune.stages.session:written"
LOAD_SPACE = "atune.stages.session:load_space"
LIST_SPACE = "atune.stages.session:list_space"
GPUS = "atune.stages.gpu:gpus"

JOBS = "atune.stages.entry_points:"
"""Beginning of the import path of every function that does a job. The job's name, such as ``lower``, follows."""
DISCOVER = f"{JOBS}discover"
OPEN_DEVICE = f"{JOBS}open_device"
REST_DEVICE = f"{JOBS}rest_device"
ELABORATE_FOREIGN = "atune.stages.foreign:elaborate"
NEIGHBOURS = "atune.stages.gpu:neighbours"

SERVICE_LISTEN = "atune.stages.cicc_server:listen"


class Session(msgspec.Struct, frozen=True):
    """Everything that a worker gets when it starts. `device`: the worker's device; empty for a compile worker."""

    ref: WorkloadRef
    target: Target
    compile: CompileSettings
    benchmark: BenchmarkSettings
    run_dir: str
    load: bool = False
    """Whether the worker loads the workload as soon as it starts, outside any candidate's deadline."""
    device: str = ""
    tools: str = ""
    """The part of the compiler states that identifies the compilers; empty if the run does not use cicc."""
    allow: tuple[str, ...] | None = None
    """Names of external functions that strangers' kernels may call; None in a run without strangers' kernels."""
    memory_bytes: int | None = None
    """Bytes of device memory that the process of a device may use; None for no limit."""


class Discovery(msgspec.Struct, frozen=True):
    """The target of a run on this machine, and the devices for that target."""

    target: Target
    devices: tuple[DeviceInfo, ...]
    tools: str = ""
    """The part of the compiler states that identifies the compilers behind nvcc; empty if cicc cannot be used."""
    no_cicc: str = ""
    """Why cicc cannot be used; empty if cicc can be used."""
    fallback: str = ""
    """The warning that ``auto`` chose the CPU because there is no GPU; empty in all other cases."""
    untested: str = ""
    """The warning that atune was not tested with this version of tilelang; empty if atune was tested with it."""
    nvcc: bool = True
    """Whether the target's compiler is installed. Only a machine without a device to measure on may lack it."""


class LoadSpace(msgspec.Struct, frozen=True):
    """A request to load a workload before its space is requested. `known`: the description without the space."""

    ref: WorkloadRef
    known: WorkloadSpec | None
    deadline_s: float


class SpacePart(msgspec.Struct, frozen=True):
    """Some configurations of a space. The last part also has the workload's description, but without configurations."""

    configs: tuple[Config, ...]
    spec: WorkloadSpec | None


class Neighbours(msgspec.Struct, frozen=True):
    """A request for the other users of the GPU `uuid`. `program`: the pid of the run's program.

    The answer describes each process, by pid. If the pids belong to another namespace, so that atune cannot name any
    process, the answer also has the GPU's utilisation in percent; otherwise that number is 0.
    """

    program: int
    uuid: str
    idle: bool = False
    """Whether the run computes nothing on the GPU at the moment."""
