"""Parallel compilation of many configurations without measuring, for sweeps that you time yourself."""

from __future__ import annotations

import importlib
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any, TypedDict, TypeVar, Unpack

import anyio
import anyio.to_thread
import msgspec

from atune.engine.compile_stage import CompileStage, find_roles
from atune.engine.interfaces import Machine
from atune.engine.run_state import Run
from atune.engine.scheduler import CompileState
from atune.engine.screen import LayoutChoice, Verdict
from atune.errors import CompileFailed
from atune.frontends.api.blocking import run_blocking
from atune.frontends.api.options import EngineOptions
from atune.journal.events import BuildFailed
from atune.journal.result import Record
from atune.model.artifact import Artifact, Failure, Lowered, Roles, source_path
from atune.model.candidate import BASELINE, Candidate, config_key
from atune.model.device import Target
from atune.model.options import Option, complete, documents, options_of
from atune.model.settings import CompileSettings
from atune.workers.local.machine import LocalMachine
from atune.workers.processes.server import in_worker, refuse_in_worker
from atune.workers.storage.artifact_store import ArtifactStore
from atune.workload.options import WorkloadOptions
from atune.workload.pickling import WorkloadRef, ship
from atune.workload.workload import Workload, WorkloadSpec, candidates_of, describe

_OF_WORKLOAD, _OF_TUNE = options_of(WorkloadOptions), options_of(EngineOptions)


class CompileAllOptions(TypedDict, total=False):
    """Options of `compile_all`. All but one are those of `Workload` and `tune`."""

    # fmt: off
    arguments: Annotated[Mapping[str, Any] | None, _OF_WORKLOAD["arguments"].option]
    out_idx: Annotated[int | Sequence[int] | None, _OF_WORKLOAD["out_idx"].option]
    pass_configs: Annotated[Mapping[str, Any] | None, _OF_WORKLOAD["pass_configs"].option]
    target: Annotated[str, _OF_TUNE["target"].option]
    compile: Annotated[CompileSettings | None, _OF_TUNE["compile"].option]
    ignore_errors: Annotated[bool, Option("Return None for each kernel that failed to compile.", default=False)]
    # fmt: on


@documents(CompileAllOptions)
def compile_all(
    kernel: Callable[..., Any],
    configs: Iterable[Mapping[str, Any]] | Callable[..., Any],
    **options: Unpack[CompileAllOptions],
) -> list[Any]:
    """Compile `kernel` with each of `configs` in worker processes, and return the kernels in order.

    Call a kernel like `TuneResult.kernel`: with the inputs, to get the outputs, or with every parameter. Its `config`
    is the configuration, and its `source` the device source. The call blocks, inside a running event loop too.

    A target with an arch, such as ``sm_90a``, needs no GPU.

    Raises `CompileFailed` if a configuration failed to compile, after all others are compiled. Raises `UsageError`
    for arguments that cannot work.

    Parameters
    ----------
    kernel, configs
        As for `Workload`. `configs` is a list of dicts, a generator, or a function of the arguments.
    {options}
    """
    refuse_in_worker()
    given = complete("compile_all", options, CompileAllOptions)
    of_kernel = {name: given[name] for name in ("arguments", "out_idx", "pass_configs")}
    workload = Workload(kernel, configs, **of_kernel)
    settings = given["compile"] or CompileSettings()
    spec = describe(workload)
    candidates = [Candidate(index, config_key(config), config) for index, config in enumerate(spec.configs)]
    default = spec.default_config
    first = [] if default is None else [Candidate(BASELINE, config_key(default), default)]

    async def work() -> list[Any]:
        async with compilers(ship(workload), given["target"], settings, spec) as (machine, run):
            answers = await compiled(machine, candidates, run, settings.group_size, roles_in=[*first, *candidates])
            if not given["ignore_errors"]:
                raise_failures(candidates, answers)
            return [await _loaded(one, answers[one.index], run.roles) for one in candidates]

    return run_blocking(work)


@asynccontextmanager
async def compilers(
    workload: WorkloadRef, target: str | Target, settings: CompileSettings, spec: WorkloadSpec | None = None
) -> AsyncGenerator[tuple[LocalMachine, Run], None]:
    """Open a machine that measures nothing and knows its target. Yields it, and the run that it wakes."""
    machine, run = LocalMachine(workload, spec=spec, target=target, devices=(), compile=settings), Run()
    async with machine.open(wake=run.wake):
        await machine.discover()
        yield machine, run


async def _loaded(candidate: Candidate, answer: Artifact | Failure, roles: Roles) -> Any:
    """Return a candidate's kernel from its library, or None if it failed. The library must still exist."""
    if isinstance(answer, Failure):
        return None
    load = importlib.import_module("atune.stages.measure.loader").Kernel
    kernel = await anyio.to_thread.run_sync(load, answer, roles)
    kernel.config = dict(candidate.config)
    kernel.source = Path(source_path(answer.path, answer.symbol)).read_text()
    return kernel


async def compiled(
    machine: Machine,
    candidates: Sequence[Candidate],
    run: Run,
    group_size: int | None = None,
    *,
    layouts: LayoutChoice | None = None,
    roles_in: Sequence[Candidate] = (),
) -> dict[int, Artifact | Failure]:
    """Return each candidate's outcome, by index. `machine` is open, knows its target, and wakes `run`.

    Candidates that lower to the same code share one artifact. What `layouts` passes over has no outcome.
    `roles_in`: candidates in whose code to find the roles of the parameters, for `run`.
    """
    await machine.prepare(len(candidates))
    workers, artifacts, codes = machine.compile_workers(), dict[int, Artifact](), dict[str, int]()
    if roles_in:
        await find_roles(run, workers[0], roles_in)
    propose, proposals = anyio.create_memory_object_stream[Candidate](len(candidates))
    with propose:
        for candidate in candidates:
            propose.send_nowait(candidate)
    state = CompileState(len(workers), devices=0, total=len(candidates), group_size=group_size, proposing=False)

    def judge(lowered: Lowered) -> Verdict:
        """Have all be built: nothing is measured, so none is likely to lose."""
        index, recorded = lowered.index, run.recorder.state
        if (same_as := codes.setdefault(lowered.code_key, index)) != index:
            return Verdict("duplicate", same_as=same_as)
        return Verdict("build") if layouts is None else layouts.judge(recorded, index, run.limits)

    async def deliver(artifact: Artifact) -> None:
        artifacts[artifact.index] = artifact

    with proposals:
        stage = CompileStage(run, state, proposals, judge, deliver, hints=machine.hints)
        async with anyio.create_task_group() as tasks:
            for worker in workers:
                tasks.start_soon(stage.serve, worker)
    answers = dict[int, Artifact | Failure]()
    for index in (candidate.index for candidate in candidates):
        first, outcome = run.recorder.state.first(index).index, run.recorder.state.outcome(index)
        if isinstance(outcome, BuildFailed):
            answers[index] = Failure(first, outcome.kind, outcome.message, outcome.detail)
        elif first in artifacts:
            answers[index] = artifacts[first]
    return answers


def failed_records(candidates: Sequence[Candidate], answers: Mapping[int, Artifact | Failure]) -> list[Record]:
    """Return the records of the candidates that failed, for `reporting.summary`."""
    failed = ((candidate, answers.get(candidate.index)) for candidate in candidates)
    return [
        Record(
            index=candidate.index, key=candidate.key, config=candidate.config, status="failed",
            kind=answer.kind, message=answer.message, detail=answer.detail,
        )
        for candidate, answer in failed if isinstance(answer, Failure)
    ]  # fmt: skip


def raise_failures(candidates: Sequence[Candidate], answers: Mapping[int, Artifact | Failure]) -> None:
    """Raise `CompileFailed` if there is a failure, with counted reasons and an example of the most frequent."""
    from atune.reporting.summary import example_lines, failure_groups, group_lines

    if failed := failed_records(candidates, answers):
        groups = failure_groups(failed)
        lines = [f"{len(failed)} of {len(candidates)} configurations failed to compile:"]
        lines += [f"  {line}" for line in group_lines(groups, 10, example_lines(groups))]
        failures = [(candidates[i].config, one) for i, one in sorted(answers.items()) if isinstance(one, Failure)]
        raise CompileFailed("\n".join(lines), failures)


T = TypeVar("T")
Use = Callable[[Artifact | None], T]


def with_library(workload: Workload, target: Target, settings: CompileSettings, use: Use[T]) -> T:
    """Call `use` with the library of `workload`, which has one configuration. Returns its result.

    This process lowers and compiles nothing. If the artifact store lacks the library, a worker process makes it. A
    worker process may start no workers: there `use` gets None, and compiles itself. Raises `CompileFailed` if the
    kernel fails to compile. Blocks, and works inside a running event loop too.
    """
    plain = plain_settings(settings)
    found = _stored(workload, target, plain)
    if found is not None or in_worker():
        return use(found)
    made: T = run_blocking(_built, workload, target, plain, use)
    return made


def plain_settings(settings: CompileSettings) -> CompileSettings:
    """Return `settings` for compiling one kernel as tilelang does."""
    return msgspec.structs.replace(settings, cicc=False, workers=1, group_size=None)


def _stored(workload: Workload, target: Target, settings: CompileSettings) -> Artifact | None:
    if not settings.store:
        return None
    (candidate,) = candidates_of(workload)
    try:
        key = importlib.import_module("atune.stages.compile.lowering").store_key(
            workload.kernel, workload.arguments, candidate.config, target, settings, workload.pass_configs
        )
        return ArtifactStore().find(key, candidate.index) if key else None
    except Exception:
        return None  # a worker will report what is wrong


async def _built(workload: Workload, target: Target, settings: CompileSettings, use: Use[T]) -> T:
    candidates = candidates_of(workload)
    async with compilers(ship(workload), target, settings, describe(workload)) as (machine, run):
        answers = await compiled(machine, candidates, run)
        raise_failures(candidates, answers)
        artifact = answers[0]
        assert isinstance(artifact, Artifact)
        return await anyio.to_thread.run_sync(use, artifact)
