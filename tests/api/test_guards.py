"""Programs that would tune without end, or wait for nothing: each is told what it lacks."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import pytest

from atune.errors import NoWinner, UsageError, WorkloadError
from atune.frontends.tuner import Tuner, run
from atune.model.settings import BenchmarkSettings, CompileSettings
from atune.testing import FakeMachine
from atune.workload.workload import Workload

QUICK = {"compile": CompileSettings(workers=1), "benchmark": BenchmarkSettings(n_repeat=2, n_final=0)}
KERNEL = """\
import asyncio
import tilelang.language as T
import atune
from atune.frontends.cached_tune import CachedWork, tune_work
from atune.frontends.tuner import RunPlan
from atune.workers.result_cache import ResultCache


def kernel(x=0):
    {body}

    @T.prim_func
    def main(a: T.Tensor((32,), "float32"), out: T.Tensor((32,), "float32")):
        with T.Kernel(1):
            for i in T.serial(32):
                out[i] = a[i] * 2.0

    return main


WORKLOAD = atune.Workload(kernel, [{{"x": 0}}])
{last}
"""
GUARD = r'tunes while a worker loads the file, .*: put the call below `if __name__ == "__main__":`'


def written(folder: Path, last: str, body: str = "pass", name: str = "tunes.py") -> Path:
    file = folder / name
    file.write_text(KERNEL.format(last=last, body=body))
    return file


@pytest.mark.parametrize(
    "call",
    [
        "atune.run(WORKLOAD, target='c')",
        "asyncio.run(atune.tune(WORKLOAD, target='c', journal='never'))",
        "asyncio.run(tune_work(CachedWork(WORKLOAD, RunPlan.of('tune', {'target': 'c'})), ResultCache()))",
        "atune.compile_all(kernel, [{'x': 0}], target='c')",
    ],
)
def test_file_that_tunes_while_it_is_loaded(tmp_path: Path, call: str) -> None:
    """Its workers would load the file, and tune, and so on."""
    file = written(tmp_path, call)
    line = len(file.read_text().splitlines())
    with pytest.raises(WorkloadError, match=rf"tunes\.py, line {line}, {GUARD}"):
        run(f"{file}:WORKLOAD", target="c", **QUICK)
    assert list(tmp_path.iterdir()) == [file]


def test_module_that_tunes_while_it_is_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The program imports it by name, and so do the workers."""
    written(tmp_path, "atune.run(WORKLOAD, target='c')", name="tunes_at_import.py")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(WorkloadError, match=rf"tunes_at_import\.py, line \d+, {GUARD}"):
        importlib.import_module("tunes_at_import")
    assert "tunes_at_import" not in sys.modules


def test_kernel_that_tunes_fails_alone(tmp_path: Path) -> None:
    file = written(tmp_path, "", "if x == 0: atune.run(WORKLOAD, target='c')")
    with pytest.raises(NoWinner, match="failed to lower: WorkloadError: a function of the workload tunes in a worker"):
        run(f"{file}:WORKLOAD", target="c", **QUICK)


def test_a_file_with_the_guard_tunes(tmp_path: Path) -> None:
    file = written(tmp_path, "if __name__ == '__main__':\n    atune.run(WORKLOAD)")
    assert run(f"{file}:WORKLOAD", target="c", **QUICK).measured == 1


def test_relative_import_in_a_file_says_what_to_do(tmp_path: Path) -> None:
    file = written(tmp_path, "from .sizes import N")
    words = r"relative import .*; FILE\.py:NAME runs the file alone, .* import by full names .* atune\.run\(WORKLOAD\)"
    with pytest.raises(WorkloadError, match=words):
        run(f"{file}:WORKLOAD", target="c", **QUICK)


def test_exec_without_its_source_says_what_to_do() -> None:
    text = KERNEL.format(body="pass", last="")
    names: dict[str, Any] = {"__name__": "made_by_exec"}
    exec(text, names)
    told = r"put the kernel into a file, .* given to python -c .* also needs its text: Workload\(source=\.\.\.\)"
    with pytest.raises(NoWinner, match=told):
        run(Workload(names["kernel"], [{"x": 0}]), target="c", **QUICK)


@pytest.mark.anyio
async def test_events_and_result_before_entering_are_refused() -> None:
    tuner = Tuner(machine=FakeMachine())
    events = tuner.events()
    with pytest.raises(UsageError, match=r"Tuner\.events\(\): enter the Tuner first, .*: `async with Tuner"):
        await anext(events)
    with pytest.raises(UsageError, match=r"Tuner\.result\(\): enter the Tuner first"):
        await tuner.result()
    async with tuner:  # it is as good as new
        assert (await anext(events)).seq == 0
        assert (await tuner.result()).measured == 8


@pytest.mark.anyio
async def test_a_tuner_is_one_run() -> None:
    """Entered again it would run anew, beside the events and the result of the first time."""
    tuner = Tuner(machine=FakeMachine(2))
    async with tuner:
        first = await tuner.result()
    with pytest.raises(UsageError, match="this Tuner was entered before, and carries out a single run: make another"):
        async with tuner:
            pass
    assert await tuner.result() is first
