"""Configurations by the prior alone: nothing is lowered, compiled or measured, and no GPU is needed."""

from __future__ import annotations

import random

import anyio
import msgspec

from atune.engine.prior import can_run, choices, figures_for, hedged
from atune.engine.proposing import SURVEYED, Survey
from atune.engine.settings import EngineSettings
from atune.errors import UsageError
from atune.frontends.blocking import run_blocking
from atune.frontends.tuner import RunPlan, named_work
from atune.model.candidate import Config, numbered
from atune.model.device import DeviceInfo, device_named
from atune.model.options import Count, converted
from atune.model.settings import CompileSettings
from atune.workers.local_machine import LocalMachine
from atune.workers.server import refuse_in_worker
from atune.workload.pickling import FileRef
from atune.workload.workload import Workload

PATIENCE_S, EACH_S = 40.0, 0.1
"""How long all candidates are waited for: so many seconds, and for each so many more. Most take 0.02 s."""
NO_FIGURES = "the prior knows nothing of this device: the default is chosen"
NOT_READ = "the prior cannot read what a block of this kernel does: the default is chosen"


class PickedConfig(msgspec.Struct, frozen=True):
    """A configuration, and the latency that the prior expects, in milliseconds; None where it knows nothing."""

    config: Config
    estimate_ms: float | None = None


class Picked(msgspec.Struct, frozen=True):
    """The choice of `pick`: the best first. Estimates serve to compare; as milliseconds they may be far off.

    `gpu`: the device that it is for; empty where there is none. `candidates`: those that were looked at, of which
    `unfit` cannot run, and `unknown` gave no answer in time. `why`: why the prior knows nothing, so that the only
    choice is the default; empty where it does.
    """

    choices: tuple[PickedConfig, ...]
    gpu: str
    candidates: int
    unfit: int
    why: str
    unknown: int = 0


def pick(workload: Workload | FileRef | str, n: int = 3, gpu: str | None = None) -> Picked:
    """Choose `n` configurations of `workload` by the prior, without measuring. Workers run its kernel function.

    The last divides the work in another way than the others, if any does.

    `workload`: as for `tune`. `gpu`: the board to choose for, such as ``H100``; then neither a GPU nor nvcc is needed.
    None: this machine's.

    Raises `UsageError` for arguments that cannot work, and where no candidate can run or the kernel function hangs.
    """
    refuse_in_worker()
    device = None if gpu is None else device_named(gpu)
    return run_blocking(picked, workload, converted("n", n, Count), device)


async def picked(workload: Workload | FileRef | str, n: int, device: DeviceInfo | None) -> Picked:
    """Do what `pick` does. `device`: choose for it; None for this machine's."""
    plan = RunPlan(settings=EngineSettings(compile=CompileSettings(cicc=False, store=False)))
    machine = plan.machine_for(named_work(workload)[0])
    assert isinstance(machine, LocalMachine)
    async with machine.open():
        target = await machine.assume(device)
        spec = await machine.describe()
        listed = numbered(spec.configs)
        candidates = listed if len(listed) <= SURVEYED else random.Random(0).sample(listed, SURVEYED)
        figures = figures_for(target, machine.discovery.devices)
        survey, limit_s = Survey(candidates, going_on=lambda: True), PATIENCE_S + EACH_S * len(candidates)
        if figures is not None:
            with anyio.move_on_after(limit_s):
                await survey.run(machine.compile_workers())
    gpu = next((one.name for one in machine.discovery.devices), "")
    fit = {} if figures is None else {i: one for i, one in survey.facts.items() if can_run(one, figures)}
    unknown = 0 if figures is None else len(candidates) - len(survey.facts) - len(survey.failures)
    if unknown and not fit:
        others = ", and the others cannot run" if unknown < len(candidates) else ""
        raise UsageError(
            f"in {limit_s:.0f} s the kernel function gave no answer for {unknown} of {len(candidates)} candidates"
            f"{others}: check whether it hangs. A tuning would wait compile_timeout_s for each of them"
        )
    if figures is not None and not fit:
        failed = next((one.message for one in survey.failures.values()), "by shared memory, threads and registers")
        raise UsageError(f"none of {len(candidates)} candidates can run on {gpu}: {failed}")
    best = [] if figures is None else hedged(choices(fit, figures), fit, n)
    found = tuple(PickedConfig(spec.configs[index], round(ms, 6)) for index, ms in best)
    why = "" if found else NO_FIGURES if figures is None else NOT_READ
    if why and spec.default_config is None:
        raise UsageError(f"{why.partition(':')[0]}, and there is no default: {spec.no_default}")
    unfit = 0 if figures is None else len(candidates) - len(fit) - unknown
    return Picked(found or (PickedConfig(spec.default_config or {}),), gpu, len(candidates), unfit, why, unknown)
