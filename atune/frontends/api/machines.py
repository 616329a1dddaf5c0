"""Where a run takes place: on this machine, or on a cluster's nodes."""

from __future__ import annotations

import importlib
import os
from collections.abc import Sequence
from functools import partial

import msgspec

from atune.engine.interfaces import Machine
from atune.errors import UsageError
from atune.model.device import DeviceInfo, Target, device_names
from atune.model.settings import BenchmarkSettings, CompileSettings
from atune.workers.local.machine import LocalMachine
from atune.workers.processes.messages import Discovery
from atune.workload.pickling import FileRef, WorkloadRef, parse_file_ref, ship
from atune.workload.workload import Workload, WorkloadSpec, describe, head


def discover(target: str, devices: str | Sequence[str | int]) -> tuple[Target, list[DeviceInfo]]:
    """Return the target and the devices of a run on this machine. Asks NVML, and makes no CUDA context.

    Raises `UsageError` and `TargetError` like `tune`.
    """
    names = device_names(devices)
    asked = msgspec.msgpack.encode((target, names, os.environ.get("CUDA_VISIBLE_DEVICES")))
    if asked not in _discovered:
        _discovered[asked] = importlib.import_module("atune.stages.session.devices").discover(target, names)
    found = _discovered[asked]
    return found.target, list(found.devices)


_discovered: dict[bytes, Discovery] = {}


def machine_for(
    workload: Workload | FileRef | str | None,
    *,
    cluster: str | None,
    target: str,
    devices: Sequence[str],
    compile: CompileSettings,
    benchmark: BenchmarkSettings,
) -> Machine:
    """Return the compilers and devices for `workload`; nothing is started yet. Raises `UsageError`."""
    given = parse_file_ref(workload) if isinstance(workload, str) else workload
    if not isinstance(given, (Workload, FileRef)):
        raise UsageError(f"workload: give an atune.Workload or 'FILE.py:NAME', got {workload!r}")
    reference: WorkloadRef
    spec: WorkloadSpec | None = None
    if isinstance(given, Workload):
        # Where the space asks functions of the user's, a process does that can be ended.
        spec = describe(given) if given.space.stands_at_once else head(given)
        reference = ship(given)
    else:
        reference = given
    if cluster is None:
        return LocalMachine(reference, spec=spec, target=target, devices=devices, compile=compile, benchmark=benchmark)
    from atune.workers.cluster.machine import ClusterMachine
    from atune.workers.cluster.ray_cluster import ray_agents

    return ClusterMachine(
        partial(ray_agents, address=cluster),
        reference,
        spec=spec,
        target=target,
        devices=devices,
        compile=compile,
        benchmark=benchmark,
    )
