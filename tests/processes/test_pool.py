"""The process layer: calls, crashes, deadlines, cancellations, and that no process or descriptor is left behind."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import anyio
import pytest
from fork_servers import fork_server
from processes import in_groups, wait_until

from atune.errors import RemoteError, WorkerError, WorkerLost, WorkerTimeout
from atune.workers.processes.pool import ForkServer
from atune.workers.processes.server import shutdown
from atune.workers.processes.server_main import FRAME
from atune.workers.processes.worker import Worker

HERE = Path(__file__).parents[1]
UVLOOP = ("asyncio", {"use_uvloop": True})

pytestmark = pytest.mark.anyio
every_loop = pytest.mark.parametrize("anyio_backend", ["asyncio", "trio", pytest.param(UVLOOP, id="uvloop")])


@pytest.fixture(autouse=True)
def targets_importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(HERE))


@pytest.fixture
def slow_modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Modules whose import holds the GIL in native code, waits at the pipe `gate`, fails or crashes."""
    for name, text in {
        "gil_at_import": "import ctypes\nprint('holding the GIL', flush=True)\nctypes.PyDLL(None).sleep(30)",
        "waiting_at_import": f"open({str(tmp_path / 'gate')!r}).read()",
        "fail_at_import": "raise RuntimeError('broken install')",
        "handles_faults": "import ctypes\nlibc = ctypes.CDLL(None)\nlibc.signal(11, libc.pause)",
        "crash_at_import": "import os\nprint('about to crash', flush=True)\nos.kill(os.getpid(), 11)",
    }.items():
        (tmp_path / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    return str(tmp_path)


@pytest.fixture
def run_dir(tmp_path: Path) -> str:
    return str(tmp_path / "run")


@pytest.fixture(scope="module", autouse=True)
def warm_up_uvloop() -> None:
    """Let libuv open the pipe that it keeps for the life of the process."""
    anyio.run(anyio.sleep, 0, backend_options={"use_uvloop": True})


@pytest.fixture(scope="module", autouse=True)
def what_is_there_is_not_looked_through() -> Iterator[None]:
    """Have the collections of each test pass over the objects of torch and tilelang: some 300,000."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture(autouse=True)
def nothing_left(anyio_backend: object) -> Iterator[None]:
    """Fail a test that leaves a descriptor, a child process or a transport behind."""
    shutdown()  # what other tests' runs left warm
    gc.collect()
    before = descriptors()
    yield
    gc.collect()
    assert descriptors() == before
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def zombies_of(parent: int) -> list[str]:
    stats = [path.read_text() for path in Path("/proc").glob("[0-9]*/stat")]
    return [stat for stat in stats if stat[stat.rindex(")") + 2 :].split()[:2] == ["Z", str(parent)]]


def printed(run_dir: str, text: str) -> int:
    """Return how many of the server and its workers have printed `text`."""
    logs = [*Path(run_dir).glob("*.stderr"), *Path(run_dir).glob("*.log")]
    return sum(text in log.read_text(errors="replace") for log in logs)


def childless() -> bool:
    """Whether every child of this process has been waited for."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return True
    return False


async def until(condition: Callable[[], object], timeout_s: float = 2.0) -> bool:
    with anyio.move_on_after(timeout_s):
        while not condition():
            await anyio.sleep(0.01)
    return bool(condition())


async def call_compiler(worker: Worker, *, task_status: anyio.abc.TaskStatus[int]) -> None:
    """Cancel-only: run g++ under the worker and report when its processes are up."""
    async with anyio.create_task_group() as tasks:
        group = worker.pid
        tasks.start_soon(worker.call, "pool_targets:run_compiler", b"")
        assert await until(lambda: {"cc1plus", "sleep"} <= set(in_groups([group]).values()))
        task_status.started(group)


@every_loop
async def test_round_trip(run_dir: str) -> None:
    big = os.urandom(5_000_000)
    async with fork_server(run_dir, ["json"]) as server:
        async with anyio.create_task_group() as tasks:
            for worker in "abc":
                worker = await server.spawn(worker)
                tasks.start_soon(worker.call, "pool_targets:echo", big)
        assert await worker.call("pool_targets:echo", big) == big
        assert await worker.call("pool_targets:echo", b"") == b""
        assert await worker.call("zlib:compress", b"1") != b"1"
        assert len(server.pids()) == len(in_groups(server.pids())) == 4
        assert worker.name == "c-2" and worker.alive
        assert server.preload_s is not None
        groups = server.pids()
    assert not in_groups(groups) and not server.pids() and not worker.alive
    with pytest.raises(WorkerError, match="not open"):
        await server.spawn("late")


@every_loop
async def test_remote_exception_leaves_the_worker_alive(run_dir: str) -> None:
    async with fork_server(run_dir) as server:
        worker = await server.spawn("test")
        for entry, kind, message in [
            ("pool_targets:fail", "ValueError", "so sad"),
            ("pool_targets:leave", "SystemExit", "3"),
            ("pool_targets:interrupt", "KeyboardInterrupt", "^$"),
            ("pool_targets:speechless", "Speechless", r"<no message: str\(\) raised KeyboardInterrupt>"),
            ("pool_targets:surrogate", "ValueError", r"lone \\udcff"),
            ("pool_targets:no_bytes", "TypeError", "bytes-like"),
            ("pool_targets:missing", "AttributeError", "missing"),
            ("no_such_module:f", "ModuleNotFoundError", "no_such_module"),
        ]:
            with pytest.raises(RemoteError, match=message) as caught:
                await worker.call(entry, b"so sad")
            assert caught.value.kind == kind
            assert caught.value.detail.startswith("Traceback")
        assert await worker.call("pool_targets:echo", b"x") == b"x"


async def test_a_preloaded_librarys_handler_of_faults_does_not_keep_a_crashed_worker(
    run_dir: str, slow_modules: str
) -> None:
    """This one never returns."""
    async with fork_server(run_dir, ["handles_faults"]) as server:
        worker = await server.spawn("test")
        with anyio.fail_after(20), pytest.raises(WorkerLost, match="killed by SIGSEGV") as caught:
            await worker.call("pool_targets:crash", b"")
        assert "in crash" in caught.value.detail, "faulthandler's traceback"


@every_loop
async def test_crash_names_the_signal_and_keeps_the_output(run_dir: str) -> None:
    async with fork_server(run_dir) as server:
        worker = await server.spawn("test")
        await worker.call("pool_targets:noise", b"")
        with pytest.raises(WorkerLost, match="died in pool_targets:crash: killed by SIGSEGV") as caught:
            await worker.call("pool_targets:crash", b"")
        assert "last words \\udcff" in caught.value.detail
        assert "\ufffd raw" in caught.value.detail
        assert "in crash" in caught.value.detail, "faulthandler's traceback"
        assert "straight" not in caught.value.detail, "that was the call before"
        assert not worker.alive
        with pytest.raises(WorkerLost, match="is gone: killed by SIGSEGV"):
            await worker.call("pool_targets:echo", b"")
        other = await server.spawn("test")
        with pytest.raises(WorkerLost, match="exited with status 7"):
            await other.call("pool_targets:end", b"7")


async def test_a_worker_without_its_socket_is_named_whether_it_goes_on_or_ends(run_dir: str) -> None:
    async with fork_server(run_dir) as server:
        for _ in range(10):
            worker = await server.spawn("test")
            group = worker.pid
            with anyio.fail_after(2), pytest.raises(WorkerLost, match="closed the socket that its answers go through"):
                await worker.call("pool_targets:close_replies_and_go_on", b"")
            assert not in_groups([group])
            worker = await server.spawn("test")
            with anyio.fail_after(2), pytest.raises(WorkerLost, match="killed by SIGKILL"):
                await worker.call("pool_targets:kill_itself", b"")


@pytest.mark.parametrize("how", [b"", b"raise", b"child first"])
async def test_fork_that_returns_twice_is_answered_once(run_dir: str, how: bytes) -> None:
    """The new process ends, and its answer is nobody's."""
    async with fork_server(run_dir) as server:
        worker = await server.spawn("test")
        for _ in range(5):
            assert await worker.call("pool_targets:fork_and_go_on", how) == str(worker.pid).encode()
            assert await worker.call("pool_targets:echo", b"x") == b"x"
        assert await until(lambda: list(in_groups([worker.pid])) == [worker.pid])


async def test_reply_to_an_earlier_request_is_passed_over(run_dir: str) -> None:
    async with fork_server(run_dir) as server:
        worker = await server.spawn("test")
        false = FRAME.pack(1, 0, 0, 5) + b"false"
        assert await worker.call("pool_targets:answer", false.hex().encode()) == b"false"
        assert await worker.call("pool_targets:echo", b"mine") == b"mine"
        assert await worker.call("pool_targets:answer", false.hex().encode()) == b"the true answer"


@pytest.mark.parametrize("data", [FRAME.pack(2, 0, 0, 0), b"some bytes, and some more", FRAME.pack(1, 0, 0, 1 << 62)])
async def test_reply_out_of_turn_is_named(run_dir: str, data: bytes) -> None:
    async with fork_server(run_dir) as server:
        worker = await server.spawn("test")
        message = "answered out of turn in pool_targets:answer: something wrote to the socket"
        with anyio.fail_after(2), pytest.raises(WorkerLost, match=message):
            await worker.call("pool_targets:answer", data.hex().encode())
        assert not worker.alive


async def test_idle_worker_killed_from_outside(run_dir: str) -> None:
    async with fork_server(run_dir) as server:
        worker = await server.spawn("test")
        os.kill(worker.pid, signal.SIGKILL)
        assert await until(lambda: not worker.alive)
        with pytest.raises(WorkerLost, match="out of memory, or from outside"):
            await worker.call("pool_targets:echo", b"")
        await worker.kill()


async def test_crash_takes_the_children_along_and_leaves_no_zombie(run_dir: str) -> None:
    async with fork_server(run_dir) as server:
        worker = await server.spawn("test")
        group = worker.pid
        with pytest.raises(WorkerLost):
            await worker.call("pool_targets:crash_beside_compiler", b"")
        assert await until(lambda: not in_groups([group]))
        assert await until(lambda: not zombies_of(server.pids()[0]))


@every_loop
async def test_timeout_kills_the_compiler_too(run_dir: str) -> None:
    async with fork_server(run_dir) as server:
        worker = await server.spawn("test")
        group = worker.pid
        seen: dict[int, str] = {}

        async def look() -> None:
            assert await until(lambda: {"g++", "cc1plus", "sleep"} <= set(in_groups([group]).values()))
            seen.update(in_groups([group]))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(look)
            with pytest.raises(WorkerTimeout, match=r"past 1 s"):
                await worker.call("pool_targets:run_compiler", b"", timeout_s=1)
        assert len(seen) == 4
        assert await until(lambda: not in_groups([group]), 0.5)
        assert await until(lambda: not zombies_of(server.pids()[0]), 0.5)
        assert not worker.alive


async def test_timeout_has_the_tail_and_beats_the_gil(run_dir: str) -> None:
    async with fork_server(run_dir) as server:
        worker = await server.spawn("test")
        with pytest.raises(WorkerTimeout) as caught:
            await worker.call("pool_targets:sleep", b"60", timeout_s=0.2)
        assert "going to sleep" in caught.value.detail
        worker = await server.spawn("test")
        group, start = worker.pid, time.monotonic()
        with pytest.raises(WorkerTimeout):
            await worker.call("pool_targets:hold_gil", b"", timeout_s=0.3)
        assert time.monotonic() - start < 0.8
        assert not in_groups([group])


@every_loop
async def test_cancel_during_call(run_dir: str) -> None:
    async with fork_server(run_dir) as server:
        worker = await server.spawn("test")
        async with anyio.create_task_group() as tasks:
            group = await tasks.start(lambda task_status: call_compiler(worker, task_status=task_status))
            start = time.monotonic()
            tasks.cancel_scope.cancel()
        assert time.monotonic() - start < 0.5
        assert not worker.alive
        assert await until(lambda: not in_groups([group]), 0.5)
        assert await (await server.spawn("next")).call("pool_targets:echo", b"x") == b"x"


@every_loop
@pytest.mark.parametrize(
    ("entry", "begun"), [("hold_gil", "holding the GIL"), ("run_compiler", ""), ("sleep", "going to sleep")]
)
async def test_cancel_of_everything(run_dir: str, entry: str, begun: str) -> None:
    """The scope around the server is cancelled: all groups are gone, within a second, whatever they do."""
    groups: list[int] = []
    with anyio.CancelScope() as scope:
        async with fork_server(run_dir) as server, anyio.create_task_group() as tasks:
            for _ in range(3):
                tasks.start_soon((await server.spawn("test")).call, f"pool_targets:{entry}", b"60")
            groups = server.pids()
            if begun:
                assert await until(lambda: printed(run_dir, begun) == 3)
            else:
                assert await until(lambda: list(in_groups(groups).values()).count("cc1plus") == 3)
            start = time.monotonic()
            assert len(in_groups(groups)) >= 4
            scope.cancel()
    assert scope.cancelled_caught
    assert time.monotonic() - start < 0.9
    assert await until(lambda: not in_groups(groups), 0.1)


@every_loop
async def test_cancel_during_preload_that_holds_the_gil(run_dir: str, slow_modules: str) -> None:
    for delay in (0, 0.001, 0.02, 0.3):
        start = time.monotonic()
        with anyio.move_on_after(delay) as scope:
            async with fork_server(run_dir, ["gil_at_import"]) as server:
                group = server._process.pid
                await server.spawn("test")
        assert scope.cancelled_caught
        assert time.monotonic() - start < delay + 0.5
        assert not in_groups([group])
        with pytest.raises(ProcessLookupError):
            os.kill(group, 0)


async def test_cancel_during_spawn(run_dir: str) -> None:
    """Cancelled at any moment of the fork, no worker is left."""
    async with fork_server(run_dir, ["json"]) as server:
        await (await server.spawn("warm")).kill()
        for delay in (0, 0.0005, 0.001, 0.002, 0.003):
            with anyio.move_on_after(delay):
                await (await server.spawn("test")).kill()
            assert await until(lambda: len(server.pids()) == 1)
            assert Path(f"/proc/{server.pids()[0]}/task/{server.pids()[0]}/children").read_text() == ""


@pytest.mark.parametrize("anyio_backend", ["asyncio", pytest.param(UVLOOP, id="uvloop")])
@pytest.mark.parametrize("delay", [0, 0.002, 0.3])
async def test_asyncio_cancel_which_knows_no_shields(run_dir: str, delay: float) -> None:
    servers: list[ForkServer] = []
    groups: list[int] = []
    before = descriptors()

    async def work() -> None:
        async with fork_server(run_dir) as server:
            servers.append(server)
            worker = await server.spawn("test")
            groups.extend(server.pids())
            await worker.call("pool_targets:hold_gil", b"")

    task = asyncio.create_task(work())
    await asyncio.sleep(delay)
    for _ in range(3):
        task.cancel()
        await asyncio.sleep(0)
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await until(lambda: not in_groups(groups))
    assert await until(lambda: childless() and descriptors() == before)  # the server is reaped behind the task


async def test_entering_does_not_wait_and_the_loop_goes_on(run_dir: str, slow_modules: str) -> None:
    """The preload is held at a pipe's other end until the server was entered and the loop has ticked for a while."""
    gate = Path(slow_modules, "gate")
    os.mkfifo(gate)
    writers: list[int] = []
    workers: list[Worker] = []

    def importing() -> bool:
        with suppress(OSError):  # nobody reads yet
            if not writers:
                writers.append(os.open(gate, os.O_WRONLY | os.O_NONBLOCK))
        return bool(writers)

    with anyio.fail_after(30):
        start = time.monotonic()
        async with fork_server(run_dir, ["waiting_at_import"]) as server:
            async with anyio.create_task_group() as spawning:

                async def spawn() -> None:
                    workers.append(await server.spawn("test"))

                spawning.start_soon(spawn)
                assert await until(importing)
                begun = time.monotonic()
                for _ in range(20):
                    before = time.monotonic()
                    await anyio.sleep(0.005)
                    assert time.monotonic() - before < 0.1
                assert not workers and server.preload_s is None
                held = time.monotonic() - begun
                os.close(writers[0])
            assert server.preload_s is not None and held < server.preload_s < time.monotonic() - start
            assert await workers[0].call("pool_targets:echo", b"x") == b"x"


@pytest.mark.parametrize(
    ("module", "message", "tail"),
    [
        ("fail_at_import", "preloading fail_at_import failed: RuntimeError: broken install", "Traceback"),
        ("crash_at_import", "ended while importing crash_at_import: killed by SIGSEGV", "about to crash"),
    ],
)
async def test_preload_that_fails(run_dir: str, slow_modules: str, module: str, message: str, tail: str) -> None:
    async with fork_server(run_dir, [module]) as server:
        for _ in range(2):
            with pytest.raises(WorkerError, match=message) as caught:
                await server.spawn("test")
            assert tail in caught.value.detail


@every_loop
async def test_server_killed_from_outside(run_dir: str) -> None:
    async with fork_server(run_dir) as server:
        workers = [await server.spawn("test") for _ in range(3)]
        groups = server.pids()

        async def expect_lost(worker: Worker, entry: str) -> None:
            with pytest.raises(WorkerLost):
                await worker.call(entry, b"60")

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(expect_lost, workers[0], "pool_targets:hold_gil")
            tasks.start_soon(expect_lost, workers[1], "pool_targets:sleep")
            assert await until(lambda: printed(run_dir, "holding the GIL") == printed(run_dir, "going to sleep") == 1)
            start = time.monotonic()
            os.kill(groups[0], signal.SIGKILL)
        assert time.monotonic() - start < 1
        assert await until(lambda: not in_groups(groups))
        assert await until(lambda: not server.pids())
        assert not any(worker.alive for worker in workers)
        with pytest.raises(WorkerError, match="fork server ended: killed by SIGKILL"):
            await server.spawn("test")


async def test_server_that_hangs_does_not_delay_the_exit(run_dir: str) -> None:
    async with fork_server(run_dir) as server:
        await server.spawn("test")
        groups, start = server.pids(), time.monotonic()
        os.kill(groups[0], signal.SIGSTOP)
    assert time.monotonic() - start < 1
    assert await until(lambda: not in_groups(groups))


async def test_native_noise_does_not_touch_the_protocol(run_dir: str) -> None:
    async with fork_server(run_dir) as server:
        worker = await server.spawn("test")
        for _ in range(3):
            assert await worker.call("pool_targets:noise", b"intact") == b"intact"
        log = Path(run_dir, "test-0.stderr").read_text(errors="replace")
        assert [log.count(text) for text in ("from printf", "from print\n", "straight", "a child")] == [3, 3, 60, 3]
        with pytest.raises(WorkerLost) as caught:
            await worker.call("pool_targets:noisy_failure", b"")
        assert caught.value.detail.count("from print\n") == 1


async def test_nothing_is_inherited(run_dir: str) -> None:
    """A worker has its own reply socket and no other; its children have none, and none of our pipes."""
    async with fork_server(run_dir) as server:
        workers = [await server.spawn("test") for _ in range(3)]
        sockets = [json.loads(await worker.call("pool_targets:own_sockets", b"")) for worker in workers]
        assert [len(own) for own in sockets] == [1, 1, 1]
        assert len({own[0] for own in sockets}) == 3
        inherited = (await workers[2].call("pool_targets:childs_descriptors", b"")).decode()
        assert "socket:" not in inherited and "pipe:" not in inherited


async def test_settings_are_applied(run_dir: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "/untouched")
    cpu = max(os.sched_getaffinity(0))
    async with fork_server(run_dir, ["colorsys"], env={"ATUNE_BOTH": "s", "ATUNE_TEST": "s"}) as server:
        plain = await server.spawn("test")
        special = await server.spawn("test", env={"ATUNE_TEST": "w"}, cpus=[cpu], nice=5)
        facts = json.loads(await special.call("pool_targets:settings", b""))
        assert facts == {
            "env": "w",
            "both": "s",
            "pythonpath": "/untouched",
            "cpus": [cpu],
            "nice": os.nice(0) + 5,
            "group": True,
            "modules": ["colorsys"],
            "stdin": "/dev/null",
            "cwd": os.getcwd(),
        }
        facts = json.loads(await plain.call("pool_targets:settings", b""))
        assert facts["env"] == "s" and facts["nice"] == os.nice(0)
        bad = await server.spawn("test", cpus=[100_000])
        with pytest.raises(WorkerLost, match="exited with status 1") as caught:
            await bad.call("pool_targets:echo", b"")
        assert "sched_setaffinity" in caught.value.detail


async def test_error_of_the_body_comes_out_bare(run_dir: str) -> None:
    with pytest.raises(ZeroDivisionError):
        async with fork_server(run_dir) as server:
            await server.spawn("test")
            raise ZeroDivisionError
    with pytest.raises(ZeroDivisionError):
        async with fork_server(run_dir):
            raise ZeroDivisionError


async def test_no_descriptor_is_left_while_the_server_runs(run_dir: str) -> None:
    async with fork_server(run_dir) as server:
        await (await server.spawn("warm")).kill()
        before = descriptors()
        for _ in range(5):
            worker = await server.spawn("test")
            await worker.call("pool_targets:echo", b"x")
            await worker.kill()
            worker = await server.spawn("test")
            with pytest.raises(WorkerLost):
                await worker.call("pool_targets:end", b"0")
        assert descriptors() == before
        server_fds = f"/proc/{server.pids()[0]}/fd"
        assert len(os.listdir(server_fds)) < 12


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize("mode", ["idle", "gil", "preload", "compiler", "idle-forked", "gil-forked", "compiler-forked"])
def test_sigkill_of_the_parent(run_dir: str, slow_modules: str, mode: str, anyio_backend: str) -> None:
    """Everything is gone within two seconds, also when a process forked off the parent holds the lifeline open."""
    path = os.pathsep.join([str(HERE), str(HERE.parent), slow_modules])
    command = [sys.executable, str(HERE / "pool_targets.py"), run_dir, mode]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": path}) as parent:
        assert parent.stdout
        child, *groups = json.loads(parent.stdout.readline())
        try:
            mode = mode.removesuffix("-forked")
            count, holding = {"preload": (1, 1), "compiler": (9, 0), "gil": (3, 2), "idle": (3, 0)}[mode]
            wait_until(lambda: len(in_groups(groups)) == count, 2, "the processes")
            wait_until(lambda: printed(run_dir, "holding the GIL") == holding, 2, "the GIL's holders")
            parent.kill()
            wait_until(lambda: not in_groups(groups), 2, "the end of all processes")
        finally:
            if child:
                os.kill(child, signal.SIGKILL)
