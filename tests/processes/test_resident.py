"""The resident server: its sessions keep each promise of a fork server, and what is wrong with it ends in a run."""

from __future__ import annotations

import json
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import anyio
import pytest
import residents
from processes import environment, gone, wait_until
from residents import new_session, pool, running, status

from atune.errors import MachineError, ServerLost, UsageError, WorkerError
from atune.local import resident_control
from atune.processes import resident, resident_client
from atune.processes.fit import changed, difference
from atune.processes.pool import ForkServer
from atune.processes.resident_client import NoSession
from atune.processes.resident_place import Place, found
from atune.processes.resident_session import imported_environment, imported_path
from atune.processes.server import ForkServerProcess
from atune.processes.server_main import children_of, descendants

pytestmark = pytest.mark.anyio
ROOT = Path(__file__).parents[2]
UVLOOP = pytest.param(("asyncio", {"use_uvloop": True}), id="uvloop")
every_loop = pytest.mark.parametrize("anyio_backend", ["asyncio", "trio", UVLOOP])


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(autouse=True)
def own_place(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "tests"))
    residents.prepare(monkeypatch, tmp_path / "runtime")


@pytest.fixture
def server() -> Iterator[int]:
    with running() as pid:
        yield pid


async def works(process: ForkServerProcess) -> bool:
    """Tell whether a fork server forks a worker that answers."""
    async with ForkServer(process=process) as pool:
        worker = await pool.spawn("test")
        return await worker.call("pool_targets:echo", b"here", 30.0) == b"here"


async def falls_back(folder: Path, why: str) -> None:
    """See that there is no session because of `why`, quickly, and that a fork server of one's own works then."""
    with anyio.fail_after(10), pytest.raises(NoSession, match=why):
        await new_session(folder)
    assert await works(ForkServerProcess((), folder, env={}))


@every_loop
async def test_a_session_imports_nothing_and_its_workers_answer(server: int, tmp_path: Path) -> None:
    async with pool(tmp_path / "run") as forks:
        worker = await forks.spawn("test")
        assert await worker.call("pool_targets:echo", b"abc", 30.0) == b"abc"
        assert forks.preload_s == 0
        [session, _] = forks.pids()
        assert session != server and status()["sessions"] == 1
    assert gone(session) and gone(worker.pid)
    wait_until(lambda: status()["served"] == 1, 10, "its being counted")


@pytest.mark.usefixtures("with_a_terminal")
async def test_a_session_has_the_programs_surroundings(
    server: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Working folder, environment, search path, umask, limits, processors and niceness: all as the client's."""
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.setenv("ATUNE_TEST", "the client's")
    monkeypatch.setenv("ATUNE_BOTH", "\udcff")  # no UTF-8
    monkeypatch.syspath_prepend("/a/folder/of/the/client")
    own_cpus, core = os.sched_getaffinity(0), resource.getrlimit(resource.RLIMIT_STACK)
    mask = os.umask(0o027)
    os.sched_setaffinity(0, {max(own_cpus)})
    resource.setrlimit(resource.RLIMIT_STACK, (1 << 22, core[1]))
    try:
        async with pool(tmp_path / "run") as forks:
            worker = await forks.spawn("test")
            found = json.loads(await worker.call("pool_targets:settings", b"", 30.0))
            more = json.loads(await worker.call("pool_targets:surroundings", b"", 30.0))
    finally:
        os.umask(mask)
        os.sched_setaffinity(0, own_cpus)
        resource.setrlimit(resource.RLIMIT_STACK, core)
    assert found["cwd"] == str(tmp_path / "work")
    assert (found["env"], found["both"]) == ("the client's", "\udcff")
    assert found["cpus"] == [max(own_cpus)] and found["nice"] == os.nice(0)
    assert found["stdin"] == "/dev/null" and found["group"]
    assert more["umask"] == 0o027 and more["stack"][0] == 1 << 22
    assert more["path"] == [os.path.abspath(entry) for entry in sys.path]
    assert more["argv"][0].endswith("server_main.py")
    assert more["ignored"] == [int(signal.SIGINT), int(signal.SIGPIPE), int(signal.SIGXFSZ)]


async def test_a_large_environment_gets_through(server: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(20):
        monkeypatch.setenv(f"ATUNE_LARGE_{number}", "x" * 100_000)
    async with pool(tmp_path / "run") as forks:
        assert await (await forks.spawn("test")).call("pool_targets:echo", b"ab", 30.0) == b"ab"


async def test_a_killed_client_leaves_no_process_of_its_session(server: int, tmp_path: Path) -> None:
    """SIGKILL: the compilers of its workers are gone, too; the server is the only thing that stays."""
    program = subprocess.Popen(
        [sys.executable, residents.__file__, str(tmp_path / "run")],
        env=environment(), stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    with program:
        assert program.stdout is not None
        pids = json.loads(program.stdout.readline())
        wait_until(lambda: len(descendants(pids[:1])) >= 3, 20, "the compiler")
        left = {*pids, *descendants(pids[:1])}
        program.kill()
    wait_until(lambda: all(map(gone, left)), 2, "the end of all")
    wait_until(lambda: status()["sessions"] == 0, 10, "the session's being reaped")
    assert status()["pid"] == server


async def test_the_server_killed_in_the_middle_leaves_the_session_to_its_run(server: int, tmp_path: Path) -> None:
    async with pool(tmp_path / "run") as forks:
        worker = await forks.spawn("test")
        os.kill(server, signal.SIGKILL)
        wait_until(lambda: gone(server), 5, "its end")
        assert await worker.call("pool_targets:echo", b"abc", 30.0) == b"abc"
        later = await forks.spawn("test")
        pids = forks.pids()
        assert await later.call("pool_targets:echo", b"abc", 30.0) == b"abc"
    assert all(map(gone, pids))
    await falls_back(tmp_path / "next", "does not answer .*refused")
    with running() as another:  # in the place of the killed one
        assert another != server and status()["misfit"] == ""


async def test_a_stopped_server_leaves_its_sessions_to_their_runs(server: int, tmp_path: Path) -> None:
    async with pool(tmp_path / "run") as forks:
        resident_control.stop()
        assert gone(server) and found() is None
        assert await (await forks.spawn("test")).call("pool_targets:echo", b"abc", 30.0) == b"abc"


async def test_a_killed_session_is_replaced_by_a_fork_server_of_the_runs_own(server: int, tmp_path: Path) -> None:
    def again() -> ForkServerProcess:
        return ForkServerProcess((), tmp_path / "again", env={})

    async with pool(tmp_path / "run", again=again) as forks:
        worker = await forks.spawn("test")
        os.kill(forks.pids()[0], signal.SIGKILL)
        with pytest.raises(ServerLost, match="killed by SIGKILL"):
            await worker.call("pool_targets:sleep", b"60")
        new = await forks.spawn("test")
        assert await new.call("pool_targets:echo", b"abc", 30.0) == b"abc"
        os.kill(forks.pids()[0], signal.SIGKILL)
        with pytest.raises(MachineError, match="the server before it was lost, too"):
            while True:
                await forks.spawn("test")


async def test_a_server_that_does_not_answer_is_given_up(
    server: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resident_client, "ANSWER_S", 0.2)
    os.kill(server, signal.SIGSTOP)
    try:
        await falls_back(tmp_path / "run", r"does not answer within 0\.2 s")
        answer = resident_control.status(0.2)
        assert answer is not None and answer["pid"] == server and "hangs" in answer["misfit"]
    finally:
        os.kill(server, signal.SIGCONT)
    wait_until(lambda: status()["sessions"] == 0, 10, "the end of what was asked for in vain")
    assert await works(await new_session(tmp_path / "next"))


@every_loop
async def test_a_cancelled_request_leaves_no_session(server: int, tmp_path: Path) -> None:
    await anyio.sleep(0)  # uvloop opens a pipe that it keeps
    before = len(os.listdir("/proc/self/fd"))
    os.kill(server, signal.SIGSTOP)
    with anyio.move_on_after(0.1) as scope:
        await new_session(tmp_path / "run")
    os.kill(server, signal.SIGCONT)
    assert scope.cancelled_caught
    wait_until(lambda: status()["sessions"] == 0, 10, "the end of what was asked for in vain")
    assert len(os.listdir("/proc/self/fd")) == before


async def test_a_socket_that_nobody_listens_at_is_passed_over_and_replaced(tmp_path: Path) -> None:
    place = Place()
    place.make()
    resident._listening(str(place.socket)).close()
    assert found() is not None
    await falls_back(tmp_path / "run", "does not answer .*refused")
    assert resident_control.status() is None
    with running():
        assert await works(await new_session(tmp_path / "next"))


async def test_one_that_hangs_up_is_passed_over(tmp_path: Path) -> None:
    """As a server does that ends just then, or cannot fork."""
    place = Place()
    place.make()
    with resident._listening(str(place.socket)) as listening:
        threading.Thread(target=lambda: listening.accept()[0].close()).start()
        await falls_back(tmp_path / "run", "it ended while it was asked|reset|cannot be asked")


async def test_a_folder_that_others_may_enter_is_not_used(server: int, tmp_path: Path) -> None:
    Place().folder.chmod(0o755)
    try:
        await falls_back(tmp_path / "run", "must be a folder that is yours alone")
        with pytest.raises(UsageError, match="yours alone"):
            Place().make()
        assert resident_control.stop() is None, "a process was ended that somebody else may have named"
    finally:
        Place().folder.chmod(0o700)


async def test_a_socket_of_another_user_is_told_nothing(
    server: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resident_client, "peer", lambda sock: os.getuid() + 1)
    monkeypatch.setattr(resident_client, "_send", lambda *_: pytest.fail("something was sent"))
    await falls_back(tmp_path / "run", "another user's")


@pytest.mark.parametrize("user", [os.getuid(), os.getuid() + 1])
async def test_a_client_of_another_user_is_hung_up_on_before_anything_is_read(
    user: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fork() -> int:
        forked.append(1)
        raise OSError

    forked: list[int] = []
    monkeypatch.setattr(resident, "peer", lambda sock: user)
    monkeypatch.setattr(resident, "TRY_AGAIN_S", 0)
    path = str(tmp_path / "socket")
    with resident._listening(path) as listening, socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as client:
        one = resident.Resident(listening, -1, {"idle_s": 1, "socket": path}, None)  # type: ignore[arg-type]
        client.connect(path)
        client.send(b"session")
        with monkeypatch.context() as patch:
            patch.setattr(os, "fork", fork)
            one._accept()
        with suppress(ConnectionResetError):
            assert client.recv(1) == b""
        assert len(forked) == (user == os.getuid())
        one.woken.close()
        one.wakeup.close()
        one.services.close()


async def test_two_started_at_once_are_one(tmp_path: Path) -> None:
    script = "from residents import *; resident_control.PRELOAD = LIGHT; print(resident_control.start(600)['pid'])"
    programs = [
        subprocess.Popen([sys.executable, "-c", script], env=environment(), stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    try:
        pids = {int(program.communicate(timeout=60)[0]) for program in programs}
        assert pids == {status()["pid"]}
        assert await works(await new_session(tmp_path / "run"))
    finally:
        resident_control.stop()
    assert all(map(gone, pids))


async def test_a_server_whose_imports_fail_says_so_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resident_control, "PRELOAD", ("no_such_module_here",))
    with pytest.raises(WorkerError, match="no_such_module_here"):
        resident_control.start(600)
    assert found() is None and resident_control.status() is None and resident_control.stop() is None


def test_a_start_whose_log_another_one_opens_first_opens_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, unlinked = tmp_path / "log", 0

    def unlink(path: Path, missing_ok: bool = False) -> None:
        nonlocal unlinked
        os.unlink(path) if path.exists() else None
        unlinked += 1
        if unlinked == 1:
            path.write_text("another's")

    monkeypatch.setattr(Path, "unlink", unlink)
    os.close(resident_control._log(log))
    assert unlinked == 2 and log.read_text() == ""


async def test_a_disk_that_is_full_fails_the_start_and_no_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """/dev/full stands for the disk of the server's log; the lock and the socket lie where nothing can be made."""
    with monkeypatch.context() as patch:
        patch.setattr(resident_control, "_log", lambda path: os.open("/dev/full", os.O_WRONLY | os.O_CLOEXEC))
        with running():
            assert await works(await new_session(tmp_path / "run"))
    before = Place.__init__

    def elsewhere(place: Place) -> None:
        before(place)
        place.socket = Path("/proc/1/nothing")

    monkeypatch.setattr(Place, "__init__", elsewhere)
    with pytest.raises(WorkerError, match="did not start"):
        resident_control.start(600)
    monkeypatch.undo()
    assert await works(ForkServerProcess((), tmp_path / "own", env={}))


async def test_a_package_upgraded_underneath_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "packages" / "upgraded.py"
    package.parent.mkdir()
    package.write_text("VERSION = 1\n")
    monkeypatch.setenv("PYTHONPATH", f"{package.parent}:{os.environ['PYTHONPATH']}")
    monkeypatch.syspath_prepend(str(package.parent))
    monkeypatch.setattr(resident_control, "PRELOAD", (*residents.LIGHT, "upgraded"))
    with running() as first:
        async with ForkServer(process=await new_session(tmp_path / "run", (*residents.LIGHT, "upgraded"))):
            pass
        package.write_text("VERSION = 22\n")
        with pytest.raises(NoSession, match=r"upgraded\.py was changed since it was started"):
            await new_session(tmp_path / "next", (*residents.LIGHT, "upgraded"))
        assert "upgraded.py was changed" in status()["misfit"]
        assert first == status()["pid"]
    assert await works(ForkServerProcess(("upgraded",), tmp_path / "own", env={}))


async def test_another_toolkit_or_other_modules_do_not_fit_but_a_variable_of_the_users_does(
    server: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(NoSession, match="it imported other modules"):
        await new_session(tmp_path / "run", ("json",))
    (tmp_path / "pool_targets.py").write_text("")  # what the server has imported, from elsewhere
    with monkeypatch.context() as patch:
        patch.syspath_prepend(str(tmp_path))
        with pytest.raises(NoSession, match=r"would import pool_targets from .*/pool_targets\.py"):
            await new_session(tmp_path / "run")
    monkeypatch.setenv("MY_KERNELS_SIZE", "12")
    assert await works(await new_session(tmp_path / "run"))
    monkeypatch.setenv("CUDA_HOME", "/opt/another")
    await falls_back(tmp_path / "own", "it was started with another CUDA_HOME")


async def test_a_hard_limit_above_the_servers_does_not_fit(
    server: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(why: dict[str, object]) -> dict[str, object]:
        return {**why, "limits": {"RLIMIT_NOFILE": (1 << 40, 1 << 40)}}

    before = resident_client.surroundings
    monkeypatch.setattr(resident_client, "surroundings", lambda env: refused(before(env)))
    with pytest.raises(NoSession, match="may not have the program's limit RLIMIT_NOFILE"):
        await new_session(tmp_path / "run")
    wait_until(lambda: status()["sessions"] == 0, 10, "the end of the refused session")


def test_switched_off_it_is_not_looked_for(server: int, monkeypatch: pytest.MonkeyPatch) -> None:
    assert found() is not None
    monkeypatch.setenv("ATUNE_SERVER", "off")
    assert found() is None


def test_an_idle_server_ends_by_itself() -> None:
    with running(idle_s=0.2) as pid:
        wait_until(lambda: gone(pid), 10, "its end")
        assert found() is None


async def test_a_session_keeps_the_server_from_being_idle(tmp_path: Path) -> None:
    with running(idle_s=0.5) as pid:
        async with pool(tmp_path / "run"):
            wait_until(lambda: status()["up_s"] > 1, 10, "more than the time that it may be idle")
            assert not gone(pid) and found() is not None
        wait_until(lambda: gone(pid), 10, "its end")


async def test_fifty_sessions_leave_nothing_behind(server: int, tmp_path: Path) -> None:
    """No descriptor, no zombie and no memory, in the server and in the client."""
    assert await works(await new_session(tmp_path / "first"))
    wait_until(lambda: status()["served"] == 1, 10, "the first to be reaped")
    before, own = status(), len(os.listdir("/proc/self/fd"))
    for number in range(50):
        assert await works(await new_session(tmp_path / f"run-{number}"))
    wait_until(lambda: status()["served"] == 51, 20, "all to be reaped")
    after = status()
    print(before, after)
    assert after["open_files"] == before["open_files"] and after["threads"] == before["threads"] == 1
    wait_until(lambda: not children_of(server), 10, "the end of all children, zombies too")
    assert after["rss_bytes"] - before["rss_bytes"] < 1 << 20
    assert len(os.listdir("/proc/self/fd")) == own


def test_what_imports_set_counts_before_and_after() -> None:
    """A program that has imported tilelang itself has the variables that its import sets."""
    before, after = {"PATH": "/bin", "HOME": "/root"}, {"PATH": "/x:/bin", "HOME": "/root", "TL_TEMPLATE_PATH": "/t"}
    assert imported_environment(before, after) == {"PATH": ("/x:", "/x:/bin"), "TL_TEMPLATE_PATH": ("", "/t")}
    assert imported_path(["a", "b"], ["x", "a", "y", "b", "z"]) == (["x"], ["y", "z"])
    assert difference(before, before, after) == difference(after, before, after) == ""
    assert "another TL_TEMPLATE_PATH" in difference({**before, "TL_TEMPLATE_PATH": "/other"}, before, after)


def test_a_new_module_of_atunes_own_counts_as_another_version(tmp_path: Path) -> None:
    file = tmp_path / "kept.py"
    file.write_text("")
    status = file.stat()
    stamps = {str(file): (status.st_mtime_ns, status.st_size)}
    assert changed(stamps).endswith("was changed since it was started")  # atune's own files, which it does not list
