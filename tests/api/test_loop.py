"""What takes long is done beside the event loop, or in slices between which others have their turn."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from fake_runs import copying
from own_strategy import Own
from processes import environment

from atune.engine.search.enough import Enough
from atune.errors import JournalError, WorkloadError
from atune.frontends.api.tuner import tune
from atune.journal import writer
from atune.journal.reader import read
from atune.journal.writer import Journal
from atune.testing import FakeMachine, Script
from atune.workload.workload import Workload

pytestmark = pytest.mark.anyio
WAIT_S = 30.0


def kernel(N: int, block: int = 32) -> None:
    """Stands for a kernel factory where nothing is lowered."""


class LoopGoesOn:
    """Something slow that ends once the event loop has gone on beside it."""

    def __init__(self) -> None:
        self.begun, self.seen = threading.Event(), threading.Event()

    def wait(self, *_: Any) -> None:
        self.begun.set()
        assert self.seen.wait(WAIT_S), "the event loop was held up"

    async def look(self) -> None:
        """In the loop: wait for it to begin, and let it end."""
        while not self.begun.is_set():
            await anyio.sleep(0.001)
        self.seen.set()


async def test_a_workload_is_pickled_beside_the_loop() -> None:
    slow = LoopGoesOn()

    class Slow:
        def __reduce__(self) -> Any:
            slow.wait()
            raise TypeError("cannot be pickled")

    part = Slow()
    workload = Workload(kernel, [{"block": 1}], arguments={"N": 8}, reference=lambda A: part)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(slow.look)
        with pytest.raises(WorkloadError, match="cannot be pickled"):
            await tune(workload, target="c")


def test_a_module_that_tunes_while_it_is_imported_does_not_wait_for_itself(tmp_path: Path) -> None:
    (tmp_path / "tunes_at_import.py").write_text(
        "import anyio, atune\n"
        "from atune.frontends.api import tuner\n"
        "def kernel(N, block=32): pass\n"
        "async def finished(made): return type(made).__name__\n"
        "tuner._finished = finished\n"
        "print(anyio.run(tuner.tune, atune.Workload(kernel, [{'block': 1}], arguments={'N': 8})))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", "import tunes_at_import"],
        cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.stdout == "Tuner\n", done.stderr


async def test_a_journal_on_a_slow_disk_is_opened_beside_the_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = LoopGoesOn()
    monkeypatch.setattr(writer, "_sync_folder", slow.wait)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(slow.look)
        await tune(machine=FakeMachine(4), journal=tmp_path / "j")
    assert read(tmp_path / "j")


async def test_a_run_that_is_cancelled_while_its_journal_is_opened_leaves_no_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = LoopGoesOn()
    monkeypatch.setattr(writer, "_sync_folder", slow.wait)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(lambda: tune(machine=FakeMachine(4), journal=tmp_path / "j"))
        while not slow.begun.is_set():
            await anyio.sleep(0.001)
        tasks.cancel_scope.cancel()
    slow.seen.set()
    monkeypatch.undo()
    with anyio.fail_after(WAIT_S):
        while True:
            try:
                journal, _ = Journal.start(tmp_path / "j")
            except JournalError:
                await anyio.sleep(0.001)
            else:
                break
    journal.close()
    assert not (tmp_path / "j").exists()


def enough_judges(slow: LoopGoesOn, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    judge = Enough._judge
    monkeypatch.setattr(Enough, "_judge", lambda self, most: slow.wait() or judge(self, most))
    machine = FakeMachine(100, Script(facts=lambda config: copying(1.0 + config["x"])), target="sm_90a")
    return {"machine": machine, "budget": "auto"}


def own_strategy(method: str, slow: LoopGoesOn) -> dict[str, Any]:
    class Slow(Own):
        """Also sees whether two of its methods are called at the same time."""

        busy = threading.Lock()

        def ask(self) -> int | None:
            return self.alone("ask", super().ask)

        def tell(self, *outcome: Any) -> None:
            self.alone("tell", super().tell, *outcome)

        def alone(self, name: str, function: Any, *arguments: Any) -> Any:
            assert self.busy.acquire(blocking=False), "called while another call was under way"
            try:
                if name == method:
                    slow.wait()
                return function(*arguments)
            finally:
                self.busy.release()

    return {"machine": FakeMachine(40, Script(fails={3: "lower"})), "strategy": Slow()}


@pytest.mark.parametrize("way", ["ask", "tell", "enough", "enough without a pipeline"])
async def test_a_strategy_that_learns_slowly_works_beside_the_loop(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = LoopGoesOn()
    judged = way.startswith("enough")
    options = enough_judges(slow, monkeypatch) if judged else own_strategy(way, slow)
    if "without" in way:
        options["pipeline"] = False
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(slow.look)
        result = await tune(**options)
    assert slow.begun.is_set() and (result.chance is not None) == judged
    if not judged:
        assert sorted(options["strategy"].outcomes) == list(range(40))
