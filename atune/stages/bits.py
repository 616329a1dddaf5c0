"""Digests of candidates' outputs: whether all calls give the same digest, and digests for inputs of other seeds."""

from __future__ import annotations

import msgspec

from atune.model.artifact import fitting
from atune.model.jobs import Bits, BitsJob
from atune.model.measurement import Measurement
from atune.stages import benchmark
from atune.stages.arguments import POISONS, DrawnInputs, KernelArguments
from atune.stages.loader import load
from atune.stages.observer import Answer, Observer
from atune.stages.session import workload


class BitsObserver(Observer):
    """Adds to a candidate's measurement the digest of its outputs, and whether every call gave the same digest."""

    def __init__(self) -> None:
        self._digests: list[str] = []

    def before(self) -> None:
        self._digests.clear()

    def after_call(self, arguments: KernelArguments) -> None:
        self._digests.append(arguments.digest())

    def record(self, answer: Answer) -> Answer:
        if not isinstance(answer, Measurement) or not self._digests:
            return answer
        return msgspec.structs.replace(answer, bits=self._digests[0], repeats=len({*self._digests}) == 1)


def digests(job: BitsJob) -> Bits:
    """Call each artifact on inputs drawn with other seeds. Return digests of the outputs, which are not checked."""
    benchmark.release()
    drawn = workload().inputs is None or isinstance(workload().inputs, DrawnInputs)
    by_seed = [_of_seed(job, seed) for seed in (job.seeds if drawn else ())]
    return Bits(tuple(tuple(digests[n] for digests in by_seed) for n in range(len(job.artifacts))))


def _of_seed(job: BitsJob, seed: int) -> list[str]:
    """Return the digest of each artifact's outputs for inputs drawn with `seed`. Free the inputs at the end."""
    digests, arguments, made = list[str](), None, None
    for artifact in job.artifacts:
        form = artifact.params, fitting(artifact.roles, job.roles)
        if arguments is None or form != made:
            arguments, made = None, form  # frees their memory before new arguments are made
            arguments = benchmark.make_arguments(*form, seed)
        arguments.fill_outputs(POISONS[0])
        load(artifact)(*arguments.values)
        benchmark.device.timer.synchronise()
        digests.append(arguments.digest())
        arguments.restore_inputs()
    return digests
