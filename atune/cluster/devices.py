"""Which nodes measure a run, and which only compile for it: a pure function of what each node has."""

from __future__ import annotations

from collections.abc import Mapping

from atune.errors import TargetError
from atune.model.device import Target
from atune.processes.messages import Discovery

OTHER_CPU = "its CPU is of another model, for which its libraries would be"
NO_NVCC = "it has no such device, and no nvcc to compile with"


def parts(
    found: Mapping[str, Discovery], model: str = "", mixed: bool = False
) -> tuple[Target, dict[str, tuple[str, ...]]]:
    """Return the run's target, and the ids of the devices that each node, by name, measures with.

    A node without ids only compiles. For target ``c`` it is not in the answer, as libraries are for the CPU that they
    were compiled on. `model`: the devices' model; empty: there must be one alone. `mixed`: several models of one
    target are fine. GPUs count before CPUs. Raises `TargetError` where the model is not there, or there are several.
    """
    with_gpus = any(one.target.kind == "cuda" for one in found.values())
    pool = {name: one for name, one in found.items() if (one.target.kind == "cuda") == with_gpus}
    models: dict[str, list[str]] = {}
    for name, one in pool.items():
        for device in one.devices:
            nodes = models.setdefault(device.name, [])
            nodes += [name] if name not in nodes else []
    if model and model not in models:
        raise TargetError(f"no node has a device of model {model!r}: there is {_listed(models) or 'none'}")
    wanted = {model} if model else set(models)
    targets = {
        one.target for one in pool.values() if not models or any(device.name in wanted for device in one.devices)
    }
    if len(wanted) > 1 and not (mixed and len(targets) == 1):
        raise TargetError(
            f"the cluster has devices of several models, whose timings do not compare: {_listed(models)}. Tune each "
            f"model by itself: --cluster 'ADDRESS,model={min(models)}', or atune.Cluster(model={min(models)!r})"
        )
    target = min(targets, key=str)
    measuring = {
        name: tuple(device.id for device in one.devices if name in pool and device.name in wanted)
        for name, one in found.items()
    }
    all_compile = target.kind == "cuda" or not models
    return target, {name: ids for name, ids in measuring.items() if ids or all_compile}


def _listed(models: Mapping[str, list[str]]) -> str:
    return "; ".join(f"{model} on {', '.join(nodes)}" for model, nodes in sorted(models.items()))
