"""One contract for every machine: the fakes, the CPU with a real g++, and CUDA (compile only without a GPU)."""

from __future__ import annotations

import os
import shutil
import struct
import time
from collections.abc import AsyncGenerator, Iterator
from contextlib import AsyncExitStack, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

import anyio
import pytest
from contract_kernels import MODES, N
from kernel_outputs import outputs_of
from processes import in_groups
from services import artifacts, lowered_by
from stand_in_compiler import stand_in

from atune.model.artifact import Artifact, Failure, Lowered, Roles
from atune.model.candidate import Candidate, config_key
from atune.model.jobs import (
    BuildJob,
    ElaborateJob,
    FinalJob,
    GroupFailed,
    LowerJob,
    MeasureJob,
    PrepareJob,
    StartJob,
)
from atune.model.measurement import Measurement
from atune.model.settings import BenchmarkSettings, CompileSettings
from atune.stages.timer import MOST_TIMES
from atune.testing import FakeClock, FakeDeviceWorker, FakeMachine, Script
from atune.workers.compile_worker import LocalCompileWorker
from atune.workers.device_worker import LocalDeviceWorker
from atune.workers.local_machine import LocalMachine
from atune.workload.pickling import parse_file_ref

OUT = Roles(outputs=(1,))

KERNELS = Path(__file__).parents[1] / "contract_kernels.py"
SCALES = [1.0, 2.0, 3.0, 4.0, 5.0]
LIMIT_S = 1.0
"""The deadline of jobs that never end."""
FAKE_FAILS: Any = {
    2: "mismatch", 3: "non_finite", 4: "unwritten", 5: "fault", 7: "lower", 8: "compile",
}  # fmt: skip
FAKE_HANGS: Any = {6: "measure", 9: "build", 10: "lower"}

pytestmark = pytest.mark.anyio
real = (
    pytest.param("cpu"),
    pytest.param("cuda", marks=pytest.mark.gpu),
)


class Bench:
    """A machine at work: a compile worker and a device worker."""

    def __init__(self, kind: str, machine: Any) -> None:
        self.kind, self.machine = kind, machine
        self.compiler, self.device = machine.compile_workers()[0], machine.device_workers()[0]
        self._lowered: dict[int, Lowered] = {}
        self._artifacts: dict[Any, Artifact] = {}

    @contextmanager
    def hasty(self) -> Iterator[None]:
        """Give jobs that never end `LIMIT_S`."""
        with pytest.MonkeyPatch.context() as patch:
            if self.kind == "fake":
                patch.setattr(self.machine, "compile", CompileSettings(compile_timeout_s=LIMIT_S))
                patch.setattr(self.machine, "benchmark", BenchmarkSettings(benchmark_timeout_s=LIMIT_S))
            patch.setattr(LocalCompileWorker, "_limit_s", LIMIT_S)
            patch.setattr(LocalDeviceWorker, "_limit_s", LIMIT_S)
            yield

    def candidate(self, name: Any) -> Candidate:
        config = {"mode": name} if isinstance(name, str) else {"scale": name}
        index = (MODES if isinstance(name, str) else SCALES).index(name)
        return Candidate(index, config_key(config), config)

    async def lowered(self, *names: Any) -> list[Lowered]:
        found = []
        for name in names:
            candidate = self.candidate(name)
            if candidate.index not in self._lowered:
                answer = await self.compiler.run(LowerJob(candidate))
                assert isinstance(answer, Lowered), answer
                self._lowered[candidate.index] = answer
            found.append(self._lowered[candidate.index])
        return found

    async def artifact(self, name: Any) -> Artifact:
        if name not in self._artifacts:
            [artifact] = await self.compiler.run(BuildJob(tuple(await self.lowered(name))))
            assert isinstance(artifact, Artifact), artifact
            self._artifacts[name] = artifact
        return self._artifacts[name]

    async def started(self, worker: Any) -> Any:
        if not worker.alive:
            await worker.run(StartJob())
        return worker


@pytest.fixture(scope="module")
def slow_compiler(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Put a g++ on PATH that never ends for sources with `slow_marker` in them."""
    with stand_in(tmp_path_factory.mktemp("bin")) as compiler:
        compiler('for a; do case "$a" in *.cpp) grep -q slow_marker "$a" && sleep 300;; esac; done\n')
        yield


async def opened(kind: str, name: str, stack: AsyncExitStack) -> Bench:
    if kind == "fake":
        moody = name == "MOODY"
        configs: Any = [{"mode": m} for m in MODES] if moody else [{"scale": s} for s in SCALES]
        script = Script(
            fails=FAKE_FAILS if moody else {},
            hangs=FAKE_HANGS if moody else {},
            reference_ms=2.0 if moody else None,
        )
        machine: Any = FakeMachine(configs, script, clock=FakeClock(pace=0.05))
    else:
        name = f"{name}_GPU" if kind == "cuda" else name
        target = "c" if kind == "cpu" else "cuda"
        settings = CompileSettings(store=False)  # a group is compiled here, not found
        machine = LocalMachine(parse_file_ref(f"{KERNELS}:{name}"), target=target, compile=settings)
    await stack.enter_async_context(machine.open())
    spec = await machine.describe()
    assert len(spec.configs) == len(MODES if "MOODY" in name else SCALES)
    await machine.discover()
    await machine.prepare(len(spec.configs))
    return Bench(kind, machine)


@pytest.fixture(scope="module", params=["fake", *real])
async def scaled(request: pytest.FixtureRequest, anyio_backend: str) -> AsyncGenerator[Bench, None]:
    async with AsyncExitStack() as stack:
        yield await opened(request.param, "SCALED", stack)


@pytest.fixture(scope="module", params=["fake", *real])
async def moody(request: pytest.FixtureRequest, anyio_backend: str, slow_compiler: None) -> AsyncGenerator[Bench, None]:
    async with AsyncExitStack() as stack:
        yield await opened(request.param, "MOODY", stack)


async def outputs(device: Any, artifact: Artifact) -> list[bytes]:
    """Run `artifact` once on `device` and return its outputs' bytes."""
    if isinstance(device, FakeDeviceWorker):
        return [packed(device.machine.config_of(artifact.index).get("scale", 2.0))]
    return await outputs_of(device, artifact)


def packed(scale: float) -> bytes:
    return struct.pack(f"{N}f", *(scale * i for i in range(1, N + 1)))


def compiling_slowly() -> list[str]:
    """Return the slow compilers of this module that run, by their process's number."""
    path, found = f"PATH={os.environ['PATH']}".encode(), []
    for entry in Path("/proc").iterdir():
        with suppress(OSError):
            if entry.name.isdigit() and (entry / "cmdline").read_bytes().startswith(b"sleep\0"):
                found += [entry.name] if path in (entry / "environ").read_bytes().split(b"\0") else []
    return found


async def test_every_member_of_a_group_computes_its_own_output(scaled: Bench) -> None:
    """One library; its artifacts are in the group's order, and each is the candidate it says it is."""
    order = [3.0, 1.0, 5.0, 2.0]
    group = await scaled.lowered(*order)
    assert all(lowered.merge_key == group[0].merge_key for lowered in group)
    assert len({lowered.code_key for lowered in group}) == 4
    artifacts = await scaled.compiler.run(BuildJob(tuple(group)))
    assert [a.index for a in artifacts] == [SCALES.index(s) for s in order]
    assert len({a.path for a in artifacts}) == 1 and len({a.symbol for a in artifacts}) == 4
    assert Path(artifacts[0].path).is_file()
    device = await scaled.started(scaled.device)
    for scale, artifact in zip(order, artifacts, strict=True):
        assert await outputs(device, artifact) == [packed(scale)], scale


async def test_without_a_reference_nothing_is_checked(scaled: Bench) -> None:
    artifact = await scaled.artifact(2.0)
    device = await scaled.started(scaled.device)
    assert (await device.run(PrepareJob(artifact.params, OUT))).reference is None
    answer = await device.run(MeasureJob(artifact, OUT))
    assert isinstance(answer, Measurement) and not answer.checked and answer.max_error is None


@pytest.mark.parametrize("mode", ["ok", "replicated"])
async def test_a_right_candidate_is_checked_and_timed(moody: Bench, mode: str) -> None:
    """Replicated fragments: each element is held twice, and what is stored counts once."""
    artifact = await moody.artifact(mode)
    device = await moody.started(moody.device)
    reference = (await device.run(PrepareJob(artifact.params, OUT))).reference
    assert reference is not None and reference.latency_ms > 0
    answer = await device.run(MeasureJob(artifact, OUT))
    assert isinstance(answer, Measurement), answer
    assert answer.index == MODES.index(mode) and answer.checked and answer.max_error == 0
    n, n_repeat = len(answer.timing.samples_us), BenchmarkSettings().n_repeat
    assert answer.timing.latency_ms > 0 and n_repeat <= n <= MOST_TIMES * n_repeat
    assert mode == "ok" or await outputs(device, artifact) == [packed(2.0)]


async def test_the_final_times_all_in_the_same_rounds(moody: Bench) -> None:
    artifacts = [await moody.artifact("ok"), await moody.artifact("also ok")]
    device = await moody.started(moody.device)
    await device.run(PrepareJob(artifacts[0].params, OUT))
    finals = await device.run(FinalJob(tuple(artifacts), OUT, 6))
    assert [e.index for e in finals.entries] == [0, 1] and not finals.failures
    assert [len(e.timing.samples_us) for e in finals.entries] == [6, 6]
    assert finals.reference is not None and len(finals.reference.samples_us) == 6


async def lower(bench: Bench, mode: str) -> Any:
    return await bench.compiler.run(LowerJob(bench.candidate(mode)))


async def elaborate(bench: Bench, mode: str) -> Any:
    [answer] = await bench.compiler.run(ElaborateJob((bench.candidate(mode),)))
    return answer


async def build(bench: Bench, mode: str) -> Any:
    [answer] = await bench.compiler.run(BuildJob(tuple(await bench.lowered(mode))))
    return answer


async def build_soon(bench: Bench, mode: str) -> Any:
    [answer] = await bench.compiler.run(BuildJob(tuple(await bench.lowered(mode)), limit_s=LIMIT_S / 2))
    return answer


async def measure(bench: Bench, mode: str) -> Any:
    artifact = await bench.artifact(mode)
    device = await bench.started(bench.device)
    await device.run(PrepareJob(artifact.params, OUT))
    return await device.run(MeasureJob(artifact, OUT))


LATE = f"compile_timeout_s={LIMIT_S:g} (--compile-timeout)"
FAULTS = [
    (measure, "wrong", "mismatch", ""), (measure, "nan", "non_finite", ""), (measure, "skip", "unwritten", ""),
    (measure, "crash", "fault", ""), (measure, "loop", "timeout", f"{LIMIT_S:g} (--timeout)"),
    (lower, "raise", "lower", "the kernel does not like 'raise'"), (lower, "slow lower", "timeout", LATE),
    (elaborate, "raise", "lower", "the kernel does not like 'raise'"), (elaborate, "slow lower", "timeout", LATE),
    (build, "refused", "compile", "no_such_function"), (build, "slow", "timeout", LATE),
    (build_soon, "slow", "hopeless", "far longer than other compiles"),
]  # fmt: skip
"""By stage: a candidate, how it fails, and what that says."""


def skip_what_is_not_there(bench: Bench, stage: Any, mode: str) -> None:
    if bench.kind == "cuda" and mode == "slow":
        pytest.skip(reason="the slow compiler stands in for g++")
    if bench.kind == "fake" and stage is elaborate:
        pytest.skip(reason="its script raises and ends when it lowers")


@pytest.mark.parametrize(
    ("stage", "mode", "kind", "says"), FAULTS, ids=[f"{stage.__name__}-{mode}" for stage, mode, *_ in FAULTS]
)
async def test_a_fault_costs_one_candidate_and_its_worker_goes_on(
    moody: Bench, stage: Any, mode: str, kind: str, says: str
) -> None:
    """What hangs is killed, with what it started, by the time that the answer comes."""
    skip_what_is_not_there(moody, stage, mode)
    around = build if stage is build_soon else stage
    assert not isinstance(await around(moody, "ok"), Failure)  # its process is there now
    if mode in ("refused", "slow") or stage is measure:
        await moody.lowered(mode)
        await moody.artifact(mode) if stage is measure else None
    supervised = moody.device
    if stage is not measure:
        supervised = getattr(moody.compiler, "_builds" if around is build else "_code", None)
    process = getattr(supervised, "_worker", None)
    with moody.hasty() if kind == "timeout" else nullcontext():
        answer = await stage(moody, mode)
    assert isinstance(answer, Failure) and (answer.index, answer.kind) == (MODES.index(mode), kind)
    assert answer.message and (says in answer.message + answer.detail or moody.kind == "fake")
    if kind in ("timeout", "hopeless", "fault"):
        assert process is None or not in_groups([process.pid])
        assert stage is not measure or not moody.device.alive
    assert not isinstance(await around(moody, "ok"), Failure)


@pytest.mark.parametrize(("stage", "mode"), [(measure, "loop"), (build, "slow")], ids=["measure", "build"])
async def test_what_is_cancelled_is_killed_and_its_worker_goes_on(moody: Bench, stage: Any, mode: str) -> None:
    skip_what_is_not_there(moody, stage, mode)
    await moody.lowered(mode)
    await moody.artifact(mode) if stage is measure else None
    assert not isinstance(await stage(moody, "ok"), Failure)
    scope = anyio.CancelScope()

    async def work() -> None:
        with scope:
            await stage(moody, mode)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(work)
        if stage is build:
            with anyio.fail_after(20):
                await anyio.sleep(0.02)
                while moody.kind != "fake" and not compiling_slowly():
                    await anyio.sleep(0.02)
        else:
            await anyio.sleep(0.3)
        started = time.monotonic()
        scope.cancel()
    assert scope.cancelled_caught and time.monotonic() - started < 1.3
    assert not compiling_slowly()
    if stage is measure:
        await moody.device.run(StartJob())
    assert not isinstance(await stage(moody, "ok"), Failure)


async def test_a_group_with_a_fault_fails_as_a_whole(moody: Bench) -> None:
    good, refused = await moody.lowered("ok", "refused")
    assert isinstance(await moody.compiler.run(BuildJob((good, refused))), GroupFailed)
    if moody.kind != "fake":
        with moody.hasty():
            slow, ok = moody.candidate("slow lower"), moody.candidate("ok")
            assert isinstance(await moody.compiler.run(ElaborateJob((slow, ok))), GroupFailed)


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not installed")
async def test_cuda_groups_compile_without_a_gpu() -> None:
    """Real nvcc: three candidates, one library, symbols in order, and the facts of the device IR."""
    settings = CompileSettings(workers=1)
    machine = LocalMachine(parse_file_ref(f"{KERNELS}:SCALED_GPU"), target="sm_90a", devices=(), compile=settings)
    async with machine.open():
        target, devices = await machine.discover()
        assert (target.kind, target.arch, devices) == ("cuda", "sm_90a", [])
        [worker] = machine.compile_workers()
        group = await lowered_by(worker, *({"scale": scale} for scale in SCALES[:3]))
        assert all(one.facts.threads == 32 and one.facts.grid == (1, 1, 1) for one in group)
        assert len({one.code_key for one in group}) == 3
        built = artifacts(list(await worker.run(BuildJob(tuple(group)))))
        assert [a.index for a in built] == [0, 1, 2] and len({a.path for a in built}) == 1
        library = Path(built[0].path).read_bytes()
        assert all(a.symbol.encode() in library for a in built)
