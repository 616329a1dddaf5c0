"""Compile many configurations in parallel without measuring them, for sweeps that you time yourself."""

from __future__ import annotations

import importlib
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple, Unpack

import anyio
import anyio.to_thread
import msgspec

from atune.engine.compile_stage import CompileStage, find_roles
from atune.engine.interfaces import Machine
from atune.engine.run_state import Run
from atune.engine.scheduler import CompileState
from atune.engine.screen import LayoutChoice, Verdict
from atune.errors import CompileFailed, warn_caller
from atune.frontends.blocking import run_blocking
from atune.frontends.run_options import CompileAllOptions
from atune.journal.result import Record, record_of
from atune.model.artifact import Artifact, Lowered, Roles, fitting, source_path
from atune.model.candidate import Candidate, numbered
from atune.model.device import Target
from atune.model.folders import artifacts_folder, untrusted
from atune.model.options import complete, documents
from atune.model.settings import CompileSettings
from atune.workers.local_machine import LocalMachine
from atune.workers.server import refuse_in_worker
from atune.workload.pickling import WorkloadRef, ship
from atune.workload.workload import Workload, WorkloadSpec, describe


@documents(CompileAllOptions)
def compile_all(
    kernel: Callable[..., Any],
    configs: Iterable[Mapping[str, Any]] | Callable[..., Any],
    **options: Unpack[CompileAllOptions],
) -> list[Any]:
    """Compile `kernel` with each of `configs` in worker processes, and return the kernels in the same order.

    Call each kernel like `TuneResult.kernel`: pass the inputs to get the outputs, or pass every parameter. The
    attributes `config` and `source` are a kernel's configuration and device source. Blocks, even inside a running event
    loop. If the target names an architecture, such as ``sm_90a``, no GPU is needed.

    Compiles all configurations, and then raises `CompileFailed` if any of them failed to compile. Raises `UsageError`
    for invalid arguments.

    Parameters
    ----------
    kernel, configs
        As for `Workload`. `configs` is a list of dicts, a generator, or a function of the arguments.
    {options}
    """
    refuse_in_worker()
    given = complete("compile_all", options, CompileAllOptions)
    workload = Workload(kernel, configs, **{name: given[name] for name in ("arguments", "out_idx", "pass_configs")})
    settings, spec = given["compile"] or CompileSettings(), describe(workload)
    candidates = numbered(spec.configs)

    async def work() -> list[Any]:
        async with compilers(ship(workload), given["target"], settings, spec) as (machine, run):
            compiled = await compile_candidates(machine, candidates, run, settings.group_size, roles=True)
            if not given["ignore_errors"]:
                raise_failures([each.record for each in compiled])
            return [artifact and await _loaded(record, artifact, run.roles) for record, artifact in compiled]

    return run_blocking(work)


@asynccontextmanager
async def compilers(
    workload: WorkloadRef, target: str | Target, settings: CompileSettings, spec: WorkloadSpec | None = None
) -> AsyncGenerator[tuple[LocalMachine, Run], None]:
    """Open a machine for `target` without any devices. Yields the machine, and the run that the machine wakes."""
    if settings.store and (why := untrusted(artifacts_folder())):
        warn_caller(why, RuntimeWarning)
    machine, run = LocalMachine(workload, spec=spec, target=target, devices=(), compile=settings), Run()
    async with machine.open(wake=run.wake):
        await machine.discover()
        yield machine, run


@asynccontextmanager
async def plain_library(
    workload: WorkloadRef,
    candidate: Candidate,
    target: Target,
    settings: CompileSettings,
    spec: WorkloadSpec | None = None,
) -> AsyncGenerator[tuple[Record, Artifact], None]:
    """Compile one candidate in a worker, as tilelang does. The library is removed when the ``async with`` block ends.

    Raises `CompileFailed`.
    """
    plain = msgspec.structs.replace(settings, cicc=False, workers=1, group_size=None)
    async with compilers(workload, target, plain, spec) as (machine, run):
        [(record, artifact)] = await compile_candidates(machine, [candidate], run)
        raise_failures([record])
        assert artifact is not None, "the candidate did not fail"
        yield record, artifact


async def _loaded(record: Record, artifact: Artifact, roles: Roles) -> Any:
    """Load a candidate's kernel from its library, which must still exist."""
    load = importlib.import_module("atune.stages.loader").Kernel
    kernel = await anyio.to_thread.run_sync(load, artifact, fitting(artifact.roles, roles))
    kernel.config = dict(record.config)
    kernel.source = Path(source_path(artifact.path, artifact.symbol)).read_text()
    return kernel


class Compiled(NamedTuple):
    """A candidate's record and artifact. The artifact is None if the candidate failed or lost to another layout."""

    record: Record
    artifact: Artifact | None


async def compile_candidates(
    machine: Machine,
    candidates: Sequence[Candidate],
    run: Run,
    group_size: int | None = None,
    *,
    layouts: LayoutChoice | None = None,
    roles: bool = False,
    builds: bool = True,
) -> list[Compiled]:
    """Compile the candidates on `machine`. The machine must be open, must know its target, and must wake `run`.

    Candidates that lower to the same code share an artifact. `layouts` may reject candidates. `roles`: whether to find
    the roles of the parameters for `run`. If `builds` is false, candidates are only lowered, and the record of a
    lowered candidate has no message.
    """
    await machine.prepare(len(candidates))
    workers, artifacts, codes = machine.compile_workers(), dict[int, Artifact](), dict[str, int]()
    if roles:
        await find_roles(run, workers[0], candidates)
    propose, proposals = anyio.create_memory_object_stream[Candidate](len(candidates))
    with propose:
        for candidate in candidates:
            propose.send_nowait(candidate)
    recorded = run.recorder.state
    state = CompileState(len(workers), devices=0, total=len(candidates), group_size=group_size, proposing=False)

    def judge(lowered: Lowered) -> Verdict:
        """Build each code once. Unlike in a tuning, keep candidates that are probably slow."""
        if (same_as := codes.setdefault(lowered.code_key, lowered.index)) != lowered.index:
            return Verdict("duplicate", same_as=same_as)
        verdict = Verdict("build") if layouts is None else layouts.judge(recorded, lowered.index, run.limits)
        return Verdict("prune") if verdict.becomes == "build" and not builds else verdict

    async def deliver(artifact: Artifact) -> None:
        artifacts[artifact.index] = artifact

    with proposals:
        stage = CompileStage(run, state, proposals, judge, deliver, hints=machine.hints)
        async with anyio.create_task_group() as tasks:
            for worker in workers:
                tasks.start_soon(stage.serve, worker)

    # The candidate that was lowered first was built. Its artifact goes to the first candidate with the same code.
    built = {recorded.first(index).index: artifact for index, artifact in artifacts.items()}

    def compiled(candidate: Candidate) -> Compiled:
        record = record_of(recorded, recorded.entry(candidate.index), {})
        status = "failed" if record.kind else record.status  # a duplicate of a failed candidate failed, too
        record = msgspec.structs.replace(record, key=candidate.key, config=candidate.config, status=status)
        return Compiled(record, built.get(recorded.first(candidate.index).index))

    return [compiled(candidate) for candidate in candidates]


def raise_failures(records: Sequence[Record]) -> None:
    """Raise `CompileFailed` if a record is a failure. The message counts the failures by kind and shows an example."""
    # imported here because it is rarely needed, and would slow `import atune` down
    from atune.reporting.summary import example_lines, failure_groups, group_lines

    if failed := [record for record in records if record.kind]:
        groups = failure_groups(failed)
        lines = [f"{len(failed)} of {len(records)} configurations failed to compile:"]
        lines += [f"  {line}" for line in group_lines(groups, 10, example_lines(groups))]
        raise CompileFailed("\n".join(lines), failed)
