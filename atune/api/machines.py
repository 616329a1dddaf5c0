"""Where a run takes place: on this machine, or on a cluster's nodes."""

from __future__ import annotations

from collections.abc import Sequence

from atune.cluster.address import Cluster
from atune.engine.interfaces import Machine
from atune.errors import UsageError
from atune.local.machine import LocalMachine
from atune.model.settings import BenchmarkSettings, CompileSettings
from atune.workload.workload import FileRef, Workload, WorkloadRef, WorkloadSpec, describe, head, parse_file_ref, ship


def machine_for(
    workload: Workload | FileRef | str | None,
    *,
    cluster: Cluster | None,
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
    from atune.cluster.machine import ClusterMachine
    from atune.cluster.ray_cluster import connect_ray

    connect = connect_ray(cluster.address, cluster.resource)
    return ClusterMachine(
        connect,
        reference,
        spec=spec,
        target=target,
        devices=devices,
        compile=compile,
        benchmark=benchmark,
        model=cluster.model,
    )
