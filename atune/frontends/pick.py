"""Choose configurations by the prior alone, without a GPU. Nothing is lowered, compiled or measured."""

from __future__ import annotations

import random

import anyio
import msgspec

from atune.engine.prior import alike, can_run, choices, figures_for, hedged
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
"""The time limit: a number of seconds, and additional seconds for each candidate. Most candidates take 0.02 s."""
NO_FIGURES = "the prior knows nothing about this device: the default is chosen"
NOT_READ = "the prior cannot read the work of a block of this kernel: the default is chosen"


class PickedConfig(msgspec.Struct, frozen=True):
    """A configuration, and the latency that the prior expects, in milliseconds (None if the prior has no estimate)."""

    config: Config
    estimate_ms: float | None = None


class Picked(msgspec.Struct, frozen=True):
    """The `choices` of `pick`, the best first. Estimates may be far off, so compare estimates only with each other.

    `gpu`: the GPU model; empty without a GPU. `candidates`: how many were examined; `unfit` of them cannot run, and
    `unknown` of them did not answer in time. `why`: the reason that the default is the only choice; otherwise empty.
    `alike`: how many candidates, in addition to the first choice, may be the fastest, because their estimates exceed
    the first choice's by less than the prior's error.
    """

    choices: tuple[PickedConfig, ...]
    gpu: str
    candidates: int
    unfit: int
    why: str
    unknown: int = 0
    alike: int = 0


def pick(workload: Workload | FileRef | str, n: int = 3, gpu: str | None = None) -> Picked:
    """Choose `n` configurations of `workload` by the prior, without measuring. Workers run its kernel function.

    If possible, the last choice divides the work in a different way than the other choices.

    `workload`: as for `tune`. `gpu`: the GPU model to choose for, such as ``H100``. If `gpu` is given, neither a GPU
    nor nvcc is needed. By default, `pick` chooses for this machine's GPU.

    Raises `UsageError` for invalid arguments, and if no candidate can run, or if the kernel function hangs.
    """
    refuse_in_worker()
    device = None if gpu is None else device_named(gpu)
    return run_blocking(picked, workload, converted("n", n, Count), device)


async def picked(workload: Workload | FileRef | str, n: int, device: DeviceInfo | None) -> Picked:
    """Choose like `pick`, for `device`, or for this machine's device if `device` is None."""
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
    gpu = next((device.name for device in machine.discovery.devices), "")
    fit = {} if figures is None else {i: facts for i, facts in survey.facts.items() if can_run(facts, figures)}
    unknown = 0 if figures is None else len(candidates) - len(survey.facts) - len(survey.failures)
    if unknown and not fit:
        others = ", and the others cannot run" if unknown < len(candidates) else ""
        raise UsageError(
            f"in {limit_s:.0f} s the kernel function did not return for {unknown} of {len(candidates)} candidates"
            f"{others}: check whether it hangs. A tuning would wait compile_timeout_s (--compile-timeout) for each of "
            "them"
        )
    if figures is not None and not fit:
        why = next((each.message for each in survey.failures.values()), "too many threads, registers or shared memory")
        raise UsageError(f"none of {len(candidates)} candidates can run on {gpu}: {why}")
    ranked = [] if figures is None else choices(fit, figures)
    best = hedged(ranked, fit, n)
    chosen = tuple(PickedConfig(spec.configs[index], round(ms, 6)) for index, ms in best)
    why = "" if chosen else NO_FIGURES if figures is None else NOT_READ
    if why and spec.default_config is None:
        raise UsageError(f"{why.partition(':')[0]}, and there is no default: {spec.no_default}")
    unfit = 0 if figures is None else len(candidates) - len(fit) - unknown
    chosen = chosen or (PickedConfig(spec.default_config or {}),)
    return Picked(chosen, gpu, len(candidates), unfit, why, unknown, alike(ranked) if ranked else 0)
