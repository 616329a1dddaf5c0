"""The process layer: calls, crashes, deadlines, cancellations, and that no process or descriptor is left behind."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import anyio
import msgspec
import pytest
from fork_servers import fork_server
from processes import in_groups, until

from atune.errors import MachineError, RemoteError, ServerLost, WorkerError, WorkerLost, WorkerTimeout
from atune.workers.compile_service import ServiceProcess
from atune.workers.pool import PRINTED_CHARACTERS, ForkServer
from atune.workers.server import ForkServerProcess, shutdown

UVLOOP = ("asyncio", {"use_uvloop": True})

pytestmark = pytest.mark.anyio
every_loop = pytest.mark.parametrize("anyio_backend", ["asyncio", "trio", pytest.param(UVLOOP, id="uvloop")])


@pytest.fixture
def slow_modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Modules whose import holds the GIL in native code, fails or crashes."""
    for name, text in {
        "gil_at_import": "import ctypes\nprint('holding the GIL', flush=True)\nctypes.PyDLL(None).sleep(30)",
        "fail_at_import": "raise RuntimeError('broken install')",
        "handles_faults": "import ctypes\nlibc = ctypes.CDLL(None)\nlibc.signal(11, libc.pause)",
        "crash_at_import": "import os\nprint('about to crash', flush=True)\nos.kill(os.getpid(), 11)",
    }.items():
        (tmp_path / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    return str(tmp_path)


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
    stats = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it may end meanwhile
            stats.append(path.read_text())
    return [stat for stat in stats if stat[stat.rindex(")") + 2 :].split()[:2] == ["Z", str(parent)]]


def childless() -> bool:
    """Whether every child of this process has been waited for."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return True
    return False


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


@pytest.mark.parametrize(
    ("said", "kept"),
    [
        ("", "\n"),
        ("one\ntwo\none", "one\ntwo\n"),
        ("x" * (PRINTED_CHARACTERS + 1), f"{'x' * PRINTED_CHARACTERS}…\n"),
        ("\n".join(map(str, range(100_000))), "\n".join(map(str, range(500)))[:PRINTED_CHARACTERS]),
    ],
    ids=["nothing", "each line once", "a long line", "many lines"],
)
async def test_what_a_call_printed_is_kept_in_part_until_the_next(said: str, kept: str, run_dir: str) -> None:
    async with fork_server(run_dir) as server:
        worker = await server.spawn("test")
        await worker.call("pool_targets:noise", b"")
        await worker.call("pool_targets:say", said.encode())
        assert worker.printed.startswith(kept) and len(worker.printed) <= PRINTED_CHARACTERS + 2
        await worker.call("pool_targets:echo", b"")
        assert worker.printed == ""
        await worker.call("pool_targets:say", b"before")
        with pytest.raises(WorkerLost):
            await worker.call("pool_targets:crash", b"")
        assert worker.printed == ""


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


@every_loop
@pytest.mark.parametrize("cancelled", [False, True], ids=["ended", "cancelled"])
@pytest.mark.parametrize("delay", [0, 0.3])
async def test_a_run_that_gives_up_leaves_the_compile_service_to_the_others(
    run_dir: str, monkeypatch: pytest.MonkeyPatch, delay: float, cancelled: bool
) -> None:
    """It is not waited for, neither by the run that gives up nor at the end of all runs."""
    process = ForkServerProcess((), Path(run_dir), env={})
    monkeypatch.setattr("atune.workers.compile_service.started", lambda modules: process)
    with anyio.CancelScope() as program:
        async with ServiceProcess() as service:
            start = time.monotonic()
            with anyio.move_on_after(delay):
                await service.call("pool_targets:sleep", msgspec.Raw(b"0.5"))
            assert time.monotonic() - start < delay + 0.5
            assert await service.call("pool_targets:echo", msgspec.Raw(b"answer")) == "answer"
            with anyio.move_on_after(0.1):
                await service.call("pool_targets:sleep", msgspec.Raw(b"60"))
            assert service.worker is not None and service.worker.alive
            groups, start = [process.pid, service.worker.pid], time.monotonic()
            if cancelled:
                program.cancel()
                await anyio.sleep_forever()
    assert time.monotonic() - start < 1
    assert not in_groups(groups)


@every_loop
async def test_cancel_during_preload_that_holds_the_gil(run_dir: str, slow_modules: str) -> None:
    for delay in (0, 0.001, 0.02, 0.3):
        start = time.monotonic()
        with anyio.move_on_after(delay) as scope:
            async with fork_server(run_dir, ["gil_at_import"]) as server:
                group = server.process.pid
                await server.spawn("test")
        assert scope.cancelled_caught
        assert time.monotonic() - start < delay + 0.5
        assert not in_groups([group])
        with pytest.raises(ProcessLookupError):
            os.kill(group, 0)


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


async def test_a_lost_server_is_replaced_once(run_dir: str, tmp_path: Path) -> None:
    """The first dies while it imports: nobody notices. Whoever works when the second dies gets an error."""
    second = [ForkServerProcess((), tmp_path / "second", env={})]
    async with fork_server(run_dir, ["json"], again=second.pop) as server:
        os.kill(server.pids()[0], signal.SIGKILL)
        worker = await server.spawn("test")
        assert await worker.call("pool_targets:echo", b"x") == b"x" and not second
        os.kill(server.pids()[0], signal.SIGKILL)
        with pytest.raises(ServerLost, match="fork server ended"):
            await worker.call("pool_targets:sleep", b"60")
        with pytest.raises(MachineError, match=r"(?s)fork server ended.*the server before it was lost, too.*resume"):
            await server.spawn("test")


async def test_a_deadline_that_passes_without_cpu_is_told_from_a_hang(run_dir: str) -> None:
    """Ten others have the core to themselves, all but a hundredth."""
    core = [min(os.sched_getaffinity(0))]
    async with fork_server(run_dir) as server, anyio.create_task_group() as tasks:
        for number in range(10):
            tasks.start_soon((await server.spawn(f"hog-{number}", cpus=core)).call, "pool_targets:spin", b"")
        starved, hangs = await server.spawn("starved", cpus=core, nice=19), await server.spawn("hangs", cpus=core)
        for worker, entry in ((starved, "spin"), (hangs, "sleep")):
            with pytest.raises(WorkerTimeout) as caught:
                await worker.call(f"pool_targets:{entry}", b"60", 1.0)
            assert caught.value.starved == (worker is starved)
        tasks.cancel_scope.cancel()
