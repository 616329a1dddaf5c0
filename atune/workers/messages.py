"""Calls to workers: the functions by import path, and the messages as msgpack.

They pass only between a program and its own processes.
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
NEIGHBOURS = "atune.stages.gpu:neighbours"

SERVICE_HEADER = "atune.stages.cicc_server:header"
SERVICE_LISTEN = "atune.stages.cicc_server:listen"


class Session(msgspec.Struct, frozen=True):
    """Everything that a worker learns at its start. `device`: its name if it is a device's process, else empty."""

    ref: WorkloadRef
    target: Target
    compile: CompileSettings
    benchmark: BenchmarkSettings
    run_dir: str
    load: bool = False
    """Whether to load the workload now, so that no candidate's deadline has to cover that; else on first use."""
    device: str = ""
    tools: str = ""
    """The compilers, as a part of the compiler state; empty where cicc is not used."""
    memory_bytes: int | None = None
    """Device memory that a device's process may use; None for all."""


class Discovery(msgspec.Struct, frozen=True):
    """The target that ``auto`` means on this machine, and its devices."""

    target: Target
    devices: tuple[DeviceInfo, ...]
    tools: str = ""
    """The compilers behind nvcc, as a part of the compiler state, where cicc can be used."""
    no_cicc: str = ""
    """Why cicc cannot be used; empty if it can."""
    fallback: str = ""
    """Message that ``auto`` means the CPU because there is no GPU; empty where the CPU was asked for."""
    untested: str = ""
    """Message that atune was not tested with this tilelang; empty where it was."""
    nvcc: bool = True
    """Whether what compiles for the target is there; it may be missing only where there is no device to measure on."""


class LoadSpace(msgspec.Struct, frozen=True):
    """A workload to load before its space is requested. `known`: its description without the space, if there is one."""

    ref: WorkloadRef
    known: WorkloadSpec | None
    deadline_s: float


class SpacePart(msgspec.Struct, frozen=True):
    """Further configurations of a space. The last part also has the workload's description, without configurations."""

    configs: tuple[Config, ...]
    spec: WorkloadSpec | None


class Neighbours(msgspec.Struct, frozen=True):
    """Ask who else uses the GPU `uuid`. `program`: the process of the run.

    The answer describes the processes, by pid, and has the GPU's utilisation in percent where nobody can be named,
    because the list is another namespace's; else 0.
    """

    program: int
    uuid: str
    idle: bool = False
    """Nothing of the run computes on it just now."""
