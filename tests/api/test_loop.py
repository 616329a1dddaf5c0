"""What takes long is done beside the event loop, or in slices between which others have their turn."""

from __future__ import annotations

import ast
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from fake_ray import FakeRay, in_place
from own_strategy import Own
from programs import python

import atune
from atune.frontends import cached_tune, tune_set, warm_start
from atune.frontends.tuner import tune
from atune.journal import writer
from atune.model.candidate import Problem
from atune.testing import FakeMachine, Script
from atune.workers import local_machine
from atune.workers.cluster import ray_cluster
from atune.workers.result_cache import ResultCache
from atune.workload.workload import Workload

pytestmark = pytest.mark.anyio
WAIT_S = 30.0


def kernel(N: int, block: int = 32) -> None:
    """Stands for a kernel factory where nothing is lowered."""


class LoopGoesOn:
    """Something slow that ends once the event loop has gone on beside it."""

    def __init__(self) -> None:
        self.begun, self.seen, self.ended = threading.Event(), threading.Event(), threading.Event()

    def wait(self, *_: Any) -> None:
        self.begun.set()
        try:
            assert self.seen.wait(WAIT_S), "the event loop was held up"
        finally:
            self.ended.set()

    async def look(self) -> None:
        """In the loop: wait for it to begin, and let it end."""
        while not self.begun.is_set():
            await anyio.sleep(0.001)
        self.seen.set()


def test_a_module_that_tunes_while_it_is_imported_does_not_wait_for_itself(tmp_path: Path) -> None:
    (tmp_path / "tunes_at_import.py").write_text(
        "import anyio, atune\n"
        "from atune.frontends import tuner\n"
        "def kernel(N, block=32): pass\n"
        "async def alone(made): return type(made).__name__\n"
        "tuner.Tuner._alone = alone\n"
        "print(anyio.run(tuner.tune, atune.Workload(kernel, [{'block': 1}], arguments={'N': 8})))\n"
    )
    done = python("-c", "import tunes_at_import", folder=tmp_path)
    assert done.stdout == "Tuner\n", done.stderr


WORKLOADS = Path(__file__).parents[1] / "workloads.py"
KNOWN: Any = SimpleNamespace(key="", header=None, still=None)
SOLE = Workload(kernel, [{"block": 1}], arguments={"N": 8})


async def join() -> None:
    async with ray_cluster.ray_agents(None, address="auto"):  # type: ignore[arg-type]
        raise AssertionError("it was cancelled before")


@pytest.fixture
def ray(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeRay:
    """A cluster to join; all folders are the test's own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ATUNE_CACHE_DIR", str(tmp_path))
    return in_place(FakeRay(()), monkeypatch)


SLOW: dict[str, tuple[Any, str, Callable[[], Awaitable[Any]]]] = {
    "a journal": (writer, "_sync_folder", lambda: tune(machine=FakeMachine(4), journal="j")),
    "a look into the cache": (warm_start, "_recall", lambda: tune(machine=FakeMachine(4), cached=True)),
    "advice": (warm_start, "_advise", lambda: tune(machine=FakeMachine(4), warm="cache")),
    "the cache's journals": (ResultCache, "answers", lambda: tune(f"{WORKLOADS}:SCALE", target="c")),
    "a known result": (ResultCache, "find", lambda: cached_tune.tune_work(KNOWN, ResultCache())),
    "the versions": (local_machine, "installed_versions", lambda: tune(f"{WORKLOADS}:SLOW", target="c")),
    "a set's folder": (
        tune_set, "open_set_folder", lambda: tune_set.tune_set(SOLE, [Problem({"N": 8})], target="c"),
    ),
    "a cluster": (ray_cluster, "_join", join),
}  # fmt: skip
"""Functions that may take long, and calls that wait for them before anything is measured."""


@pytest.mark.parametrize("what", SLOW)
async def test_cancelling_does_not_wait_for_what_is_slow_in_a_thread(
    what: str, ray: FakeRay, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread ends only after that, or much later. What it opens is then closed: a journal, a lock, a connection."""
    place, name, begin = SLOW[what]
    slow, closed = LoopGoesOn(), list[str]()
    lock = SimpleNamespace(close=lambda: closed.append("lock"))
    opened = {"a set's folder": (["paths"], lock), "a cluster": True}.get(what)
    monkeypatch.setattr(place, name, lambda *_, **__: slow.wait() or opened)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(begin)
        while not slow.begun.is_set():
            await anyio.sleep(0.001)
        tasks.cancel_scope.cancel()
    assert not slow.ended.is_set() and not closed + ray.log and Path("j").exists() == (what == "a journal")
    slow.seen.set()
    wanted = {"a set's folder": ["lock"], "a cluster": ["shutdown"]}.get(what, [])
    with anyio.fail_after(WAIT_S):
        while closed + ray.log != wanted or Path("j").exists():
            await anyio.sleep(0.001)


WAITED_FOR = {
    ("engine/engine.py", "edited_since"), ("engine/engine.py", "self.keep"),  # after the last measurement
    ("engine/engine.py", "found_in"),
    ("frontends/tuner.py", "self._keep_recalled"),
    ("workers/local_machine.py", "store.evict"),
    ("workers/local_machine.py", "partial(shutil.rmtree, self.run_dir, ignore_errors=True)"),
    ("workers/cluster/ray_cluster.py", "_leave"),
    ("frontends/compile_all.py", "load"), ("frontends/autotuned.py", "use"),  # nothing is measured
    ("frontends/autotuned.py", "self.winners.serving"),
    ("frontends/winners.py", "lambda: winner.result"),
}  # fmt: skip
"""Calls in threads that a cancellation waits for, by file: none comes between a run's start and a measurement."""


def test_no_other_thread_is_waited_for() -> None:
    """Whether it is called at once, or given to a task group or a `partial`."""
    package, found = Path(atune.__file__).parent, set[tuple[str, str]]()
    for path in package.rglob("*.py"):
        for call in (node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)):
            words = [ast.unparse(one) for one in (call.func, *call.args)]
            abandons = any(keyword.arg == "abandon_on_cancel" for keyword in call.keywords)
            if (run := "anyio.to_thread.run_sync") in words and not abandons:
                found.add((path.relative_to(package).as_posix(), words[words.index(run) + 1]))
    assert found == WAITED_FOR


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


@pytest.mark.parametrize("way", ["ask", "tell"])
async def test_a_strategy_that_learns_slowly_works_beside_the_loop(way: str) -> None:
    slow = LoopGoesOn()
    options = own_strategy(way, slow)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(slow.look)
        await tune(**options)
    assert slow.begun.is_set() and sorted(options["strategy"].outcomes) == list(range(40))
