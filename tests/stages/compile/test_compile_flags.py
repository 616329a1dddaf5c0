"""`compile_flags` and `pass_configs`: a candidate's own reach its compile, and keep it apart from others."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest
from services import lowered_by
from stand_in_compiler import stand_in

from atune.frontends.tuner import tune
from atune.journal.events import CandidateLowered, Event
from atune.model.artifact import Artifact, Lowered
from atune.model.candidate import with_tuples
from atune.model.jobs import BuildJob, FindJob
from atune.model.settings import CompileSettings
from atune.workers.compile_worker import LocalCompileWorker
from atune.workers.local_machine import LocalMachine
from atune.workload.pickling import FileRef
from atune.workload.workload import Workload, describe

pytestmark = pytest.mark.anyio

SOURCE = """
import atune
from contract_kernels import inputs, reference, scaled
FLAGS = [None, ["-DFIRST"], ["-DSECOND", "-DTHIRD"]]
WORK = atune.Workload(scaled, atune.Space(scale=[2.0, 3.0], compile_flags=FLAGS), inputs=inputs)
PASSES = [None, {}, {"tirx.disable_vectorize": True}]
PASSED = atune.Workload(scaled, atune.Space(scale=[2.0], pass_configs=PASSES), inputs=inputs, reference=reference)
GPU = atune.Workload(
    scaled, [{"scale": 2.0}, {"scale": 3.0, "compile_flags": ["-DMARK"]}], arguments={"threads": 32}, inputs=inputs
)
"""


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A file of workloads, and a g++ on PATH that notes how it is called: for all tests, which share a fork server."""
    folder = tmp_path_factory.mktemp("flags")
    (folder / "flags.py").write_text(SOURCE)
    with stand_in(folder) as compiler, pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(Path(__file__).parents[2]), prepend=os.pathsep)
        compiler(f'echo "$@" >> {folder}/calls\n')
        yield folder / "flags.py"


async def lowered_all(machine: LocalMachine) -> tuple[LocalCompileWorker, list[Lowered]]:
    spec = await machine.describe()
    await machine.discover()
    worker = machine.compile_workers()[0]
    return worker, await lowered_by(worker, *map(with_tuples, spec.configs))


async def test_flags_are_an_axis_on_the_cpu(file: Path) -> None:
    calls = file.with_name("calls")
    calls.write_text("")
    settings = CompileSettings(workers=1, flags=("-DALL",))
    machine = LocalMachine(FileRef(str(file), "WORK"), target="c", devices=("cpu",), compile=settings)
    async with machine.open():
        worker, lowered = await lowered_all(machine)
        assert len({one.code_key for one in lowered}) == 6
        assert [one.merge_key == lowered[0].merge_key for one in lowered] == [True, False, False] * 2
        assert len({one.merge_key for one in lowered}) == 3
        for member in range(3):
            built = await worker.run(BuildJob((lowered[member], lowered[member + 3])))
            assert all(isinstance(one, Artifact) for one in built), built
    flags = [[f for f in call.split() if f.startswith(("-O", "-D"))] for call in calls.read_text().splitlines()]
    assert flags == [
        ["-DALL"], ["-DFIRST"], ["-DSECOND", "-DTHIRD"],
    ]  # fmt: skip


async def test_pass_configs_are_an_axis_with_and_without_any(file: Path) -> None:
    """None is the same as none of its own, here those of all candidates: one code, measured once."""
    settings = CompileSettings(workers=1, pass_configs={"tirx.disable_vectorize": False})
    events: list[Event] = []
    result = await tune(f"{file}:PASSED", target="c", compile=settings, on_event=events.append)
    assert result.failed == result.remaining == 0 and result.duplicates >= 1
    keys = {event.index: event.code_key for event in events if isinstance(event, CandidateLowered)}
    assert keys[0] == keys[1] != keys[2]
    assert [record.config["pass_configs"] for record in result.records] == [None, {}, {"tirx.disable_vectorize": True}]


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not installed")
async def test_flags_of_one_candidate_reach_nvcc_alone(file: Path) -> None:
    """cicc takes no such flags: that candidate says why nvcc compiled it."""
    settings = CompileSettings(workers=1)
    machine = LocalMachine(FileRef(str(file), "GPU"), target="sm_90a", devices=(), compile=settings)
    async with machine.open():
        worker, (plain, flagged) = await lowered_all(machine)
        machine.use("")  # although they are few
        assert plain.merge_key != flagged.merge_key
        assert await worker.run(FindJob(plain)) is None  # the store is empty: now cicc is started
        while machine.service.warming:
            await anyio.sleep(0.05)
        if not machine.service.ready:
            pytest.skip(reason=machine.service.why)
        [first], [second] = await worker.run(BuildJob((plain,))), await worker.run(BuildJob((flagged,)))
        assert isinstance(first, Artifact) and isinstance(second, Artifact), (first, second)
        assert first.compiler == "cicc"
        assert (second.compiler, second.why) == ("nvcc", "nvcc, because only nvcc takes compile flags")


def test_the_default_has_the_settings_flags() -> None:
    work = Workload(lambda a=1: a, [{"a": 1, "compile_flags": ["-O2"]}, {"a": 1, "compile_flags": None}])
    assert describe(work).default == 1
