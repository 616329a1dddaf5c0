"""Calls of workers: the import paths of the functions, and the messages, which travel as msgpack.

The messages pass only between a program and its own processes.
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
"""Prefix of the functions that do jobs. Each is named after its job, such as ``lower``."""
DISCOVER = f"{JOBS}discover"
OPEN_DEVICE = f"{JOBS}open_device"
REST_DEVICE = f"{JOBS}rest_device"
ELABORATE_FOREIGN = "atune.stages.foreign:elaborate"
NEIGHBOURS = "atune.stages.gpu:neighbours"

SERVICE_LISTEN = "atune.stages.cicc_server:listen"


class Session(msgspec.Struct, frozen=True):
    """Everything that a worker gets at its start. `device`: the name of its device; empty in a compile worker."""

    ref: WorkloadRef
    target: Target
    compile: CompileSettings
    benchmark: BenchmarkSettings
    run_dir: str
    load: bool = False
    """Whether to load the workload now, so that no candidate's deadline has to cover that; if not, on first use."""
    device: str = ""
    tools: str = ""
    """The compilers' part of the compiler state; empty if cicc is not used."""
    allow: tuple[str, ...] | None = None
    """Code that strangers' kernels may bring, by name, in a run that judges them; None in any other run."""
    memory_bytes: int | None = None
    """Bytes of device memory that a device's process may use; None for no limit."""


class Discovery(msgspec.Struct, frozen=True):
    """The target that ``auto`` means on this machine, and its devices."""

    target: Target
    devices: tuple[DeviceInfo, ...]
    tools: str = ""
    """The part of the compiler state for the compilers behind nvcc; empty if cicc cannot be used."""
    no_cicc: str = ""
    """Why cicc cannot be used; empty if it can."""
    fallback: str = ""
    """Warning that ``auto`` means the CPU because there is no GPU; otherwise empty."""
    untested: str = ""
    """Warning that atune was not tested with this version of tilelang; otherwise empty."""
    nvcc: bool = True
    """Whether the target's compiler is installed. Only a machine without a device to measure on may lack it."""


class LoadSpace(msgspec.Struct, frozen=True):
    """A workload to load before its space is requested. `known`: its description without the space, if available."""

    ref: WorkloadRef
    known: WorkloadSpec | None
    deadline_s: float


class SpacePart(msgspec.Struct, frozen=True):
    """Some configurations of a space. The last part also has the workload's description, without configurations."""

    configs: tuple[Config, ...]
    spec: WorkloadSpec | None


class Neighbours(msgspec.Struct, frozen=True):
    """Asks who else uses the GPU `uuid`. `program`: the pid of the run's program.

    The answer describes the processes, by pid. If no process can be named, because the pids are of another namespace,
    the answer also has the GPU's utilisation in percent; otherwise it has 0.
    """

    program: int
    uuid: str
    idle: bool = False
    """Whether the run computes nothing on the GPU at the moment."""
