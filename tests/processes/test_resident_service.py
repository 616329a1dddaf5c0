"""The resident server's compile service: programs share it, it outlives none in vain, and nobody waits for it."""

from __future__ import annotations

import gc
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest
import residents
import shared_services
from processes import MARK, environment, gone, marked, new_mark, wait_until
from residents import running, status
from services import children
from shared_services import connected, find, header, listen

from atune.cli.server import _described
from atune.errors import WorkerError
from atune.local import resident_control
from atune.processes import resident_service
from atune.processes.resident_client import NoSession
from atune.processes.server_main import children_of
from atune.stages.accelerators import cicc, shared_service
from atune.stages.compile.device_source import Flavour
from atune.system.folders import private_root

pytestmark = pytest.mark.anyio
with_nvcc = pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not installed")
ROOT = Path(__file__).parents[2]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(autouse=True)
def server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[int]:
    monkeypatch.syspath_prepend(str(ROOT / "tests"))
    residents.prepare(monkeypatch, tmp_path / "runtime")
    with running() as pid:
        yield pid


def files(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


def memory(pid: int) -> int:
    """Return a process's memory; what it shares counts in full, so that it does not depend on other processes."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@with_nvcc
@pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])
async def test_the_second_program_finds_the_headers_parsed_and_uses_the_same_cicc(tmp_path: Path) -> None:
    """One after the other, and at once; what they compile is compiled."""
    async with connected() as first:
        assert not (await find(first)).ok, "nothing is parsed only because somebody asks"
        parsed = await header(first)
        assert parsed.ok and parsed.header_s > 0 and parsed.resident and not parsed.saved_s
    [pid], [cicc_pid] = status()["services"], children(first.pid)
    assert pid == first.pid
    async with connected() as second, connected() as third:
        both = [await find(second), await listen(second, tmp_path / "a"), await listen(third, tmp_path / "b")]
        assert [(one.ok, one.header_s, one.saved_s) for one in both] == [(True, 0.0, parsed.header_s)] * 3
        for folder in ("a", "b"):
            source = shared_services.INCLUDES + shared_services.KERNEL.replace("FACTOR", "2")
            assert b"k" in cicc.compile_remotely(source, Flavour(shared_services.ARCH), str(tmp_path / folder))
        assert second.pid == third.pid == pid and children(pid) == [cicc_pid]
    told = status()
    assert re.search(r" \d+ MiB in 1 compile service with parsed headers\.$", _described(told))
    assert told["services"] == [pid] and told["services_bytes"] > 50 << 20 and told["sessions"] == 0


@with_nvcc
async def test_a_first_candidate_with_other_headers_leaves_the_others_theirs(tmp_path: Path) -> None:
    async with connected() as first, connected() as second:
        assert (await header(first)).header_s > 0 and (await header(second)).saved_s > 0
        fast = {"tl.enable_fast_math": True}
        other = await listen(second, tmp_path / "fast", **fast)
        assert other.ok and other.header_s > 0 and len(children(first.pid)) == 2
        refused = await listen(first, tmp_path / "no", **{"tl.device_compile_flags": ["-O1"]})
        assert not refused.ok and "compile flags are for nvcc" in refused.reason
        assert (await listen(first, tmp_path / "plain")).saved_s > 0
    assert Path(tmp_path / "fast" / "cicc").resolve() != Path(tmp_path / "plain" / "cicc").resolve()


@with_nvcc
async def test_headers_edited_underneath_are_parsed_again(tmp_path: Path) -> None:
    """A program that uses the old ones keeps them until it leaves; then they end."""
    mine = tmp_path / "include" / "mine.cuh"
    mine.parent.mkdir()
    mine.write_text("#define FACTOR 2\n")
    source = "#include <mine.cuh>\n" + shared_services.KERNEL
    env = {"CPATH": str(mine.parent)}
    async with connected(**env) as first:
        assert (await listen(first, tmp_path / "first", source)).header_s > 0
        past = mine.stat().st_mtime_ns
        mine.write_text("#define FACTOR 3\n")
        os.utime(mine, ns=(past, past))  # as a package manager unpacks an old archive
        async with connected(**env) as second:
            assert (await listen(second, tmp_path / "second", source)).header_s > 0
            assert second.pid == first.pid and len(children(first.pid)) == 2
    async with connected(**env) as third:
        assert (await listen(third, tmp_path / "third", source)).saved_s > 0
        assert len(children(first.pid)) == 1, "the old headers"


@with_nvcc
@pytest.mark.parametrize("how", ["killed", "stopped"])
async def test_without_the_resident_server_a_service_ends_with_its_last_program(
    server: int, how: str, tmp_path: Path
) -> None:
    before = {*private_root().glob("server-*")}
    async with connected() as first, connected() as second:
        assert (await header(first)).ok
        if how == "killed":
            os.kill(server, signal.SIGKILL)
        else:
            resident_control.stop()
        wait_until(lambda: gone(server), 5, "its end")
        assert (await listen(second, tmp_path / "run")).saved_s > 0
        left = [first.pid, *children(first.pid)]
        assert not any(map(gone, left)) and len(left) == 2
    wait_until(lambda: all(map(gone, left)), 2, "the end of the service and of cicc")
    assert {*private_root().glob("server-*")} <= before, "the service's folder"


@with_nvcc
@pytest.mark.parametrize("forks", ["", "forks"])
async def test_a_killed_program_leaves_nothing_when_the_resident_server_is_gone(server: int, forks: str) -> None:
    """Neither where a process that it forked holds its sockets, too."""
    program = subprocess.Popen(
        [sys.executable, shared_services.__file__, forks],
        env=environment(), stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    with program:
        assert program.stdout is not None
        child, *left = json.loads(program.stdout.readline())
        assert len(left) == 2
        os.kill(server, signal.SIGKILL)
        wait_until(lambda: gone(server), 5, "its end")
        time.sleep(0.2)
        assert not any(map(gone, left))
        program.kill()
        wait_until(lambda: all(map(gone, left)), 2, "the end of the service and of cicc")
        if forks:
            assert not gone(child)
            os.kill(child, signal.SIGKILL)


@with_nvcc
async def test_a_killed_service_takes_cicc_along_and_the_next_program_has_another(server: int) -> None:
    async with connected() as worker:
        assert (await header(worker)).ok
        [cicc_pid] = children(worker.pid)
        os.kill(worker.pid, signal.SIGKILL)
        with anyio.fail_after(5):
            assert f"process {worker.pid}, does not answer" in str(await worker.ended())
        with pytest.raises(WorkerError):
            await header(worker)
        wait_until(lambda: gone(cicc_pid), 2, "cicc's end")
    async with connected() as another:
        assert another.pid != worker.pid and not (await find(another)).ok
        wait_until(lambda: status()["services"] == [another.pid], 5, "one service")


@with_nvcc
async def test_programs_that_use_a_killed_cicc_are_told_and_no_others(tmp_path: Path) -> None:
    async with connected() as first, connected() as second:
        assert (await header(first)).ok
        [plain] = children(first.pid)
        assert (await listen(second, tmp_path / "run", **{"tl.enable_fast_math": True})).ok
        os.kill(plain, signal.SIGKILL)
        with anyio.fail_after(5):
            await first.ended()
        assert (await listen(second, tmp_path / "again", **{"tl.enable_fast_math": True})).ok
    async with connected() as third:
        assert not (await find(third)).ok and third.pid == first.pid


@with_nvcc
async def test_fifty_programs_leave_nothing_behind(server: int, tmp_path: Path) -> None:
    """No descriptor, no process and no memory, in the service, in the resident server and in the programs."""

    async def use(number: int) -> int:
        async with connected() as worker:
            assert (await listen(worker, tmp_path / f"run-{number}")).ok
            return worker.pid

    def quiet() -> bool:
        return children_of(server) == {pid}

    pid = await use(0)
    await use(1)
    wait_until(quiet, 10, "the end of the children that passed programs on")
    gc.collect()
    before, own, its, processes = status(), files(os.getpid()), files(pid), children(pid)
    bytes_before = sum(map(memory, (pid, *processes)))
    for number in range(50):
        assert await use(number + 2) == pid
    wait_until(quiet, 10, "the end of the children that passed programs on")
    after = status()
    print(before, after)
    assert (files(os.getpid()), files(pid), children(pid)) == (own, its, processes)
    assert after["open_files"] == before["open_files"] and after["services"] == [pid] and after["served"] == 0
    assert after["rss_bytes"] - before["rss_bytes"] < 1 << 20
    print(bytes_before, sum(map(memory, (pid, *processes))))
    assert sum(map(memory, (pid, *processes))) - bytes_before < 1 << 20


async def test_a_terminal_makes_no_difference_but_other_surroundings_do(monkeypatch: pytest.MonkeyPatch) -> None:
    async with connected(TERM="dumb", SSH_TTY="1", PWD="/a") as one, connected(TERM="xterm", PWD="/b") as same:
        assert one.pid == same.pid
        async with connected(CPATH="/elsewhere") as other:
            assert other.pid != one.pid
        async with connected(CPATH=":/elsewhere") as here:  # the first entry means the working folder
            assert os.readlink(f"/proc/{here.pid}/cwd") == os.getcwd()
            assert os.readlink(f"/proc/{one.pid}/cwd") == "/"
    monkeypatch.setenv("CUDA_HOME", "/elsewhere")
    with pytest.raises(NoSession, match="another CUDA_HOME"):
        async with connected():
            pass


async def test_the_least_recently_used_service_is_forgotten_and_ends_with_its_last_program() -> None:
    async with connected(MINE="used") as used:
        pids = []
        async with connected(MINE="idle") as idle:
            pass
        for number in range(resident_service.MOST - 1):
            async with connected(MINE=str(number)) as worker:
                pids.append(worker.pid)
            async with connected(MINE="idle") as again:
                assert again.pid == idle.pid, "it was used just before"
        wait_until(lambda: used.pid not in status()["services"], 5, "one that is forgotten")
        assert sorted(status()["services"]) == sorted([idle.pid, *pids])
        assert not any(map(gone, [used.pid, idle.pid, *pids])) and not (await find(used)).ok
    wait_until(lambda: gone(used.pid), 5, "its end")
    async with connected(MINE="another") as another:
        wait_until(lambda: gone(pids[0]), 5, "the end of one that nobody uses")
        assert sorted(status()["services"]) == sorted([idle.pid, *pids[1:], another.pid])


async def test_a_service_that_is_stopped_holds_up_nobody(server: int, tmp_path: Path) -> None:
    async with connected() as worker:
        os.kill(worker.pid, signal.SIGSTOP)
        try:
            async with connected() as second:
                assert second.pid == worker.pid, "the resident server answers"
                with pytest.raises(WorkerError):
                    await second.call("header", b"", 0.2)
            (await residents.new_session(tmp_path / "run")).destroy()
        finally:
            os.kill(worker.pid, signal.SIGCONT)
    wait_until(lambda: status()["services"] == [worker.pid], 5, "the service")


async def test_requests_without_meaning_end_the_connection_alone() -> None:
    async with connected() as first, connected() as second:
        for entry, payload in (("listen", b"nonsense"), ("system", b"")):
            async with connected() as third:
                with pytest.raises(WorkerError), anyio.fail_after(5):
                    await third.call(entry, payload, 5.0)
        assert first.pid == second.pid and first.alive and not (await find(second)).ok


HANGS = """
import os, socket, subprocess
from atune.stages.accelerators import shared_service

os.setpgid(0, 0)
shared_service.PARSE_S = 1
shared_service.new_server = lambda *_: subprocess.run(["sleep", "600"])
(control, theirs), (client, service) = (socket.socketpair(type=socket.SOCK_SEQPACKET) for _ in range(2))
request = os.memfd_create("request")
os.write(request, b"\\xa6sm_90a")  # as msgpack
socket.send_fds(client, [b"header"], [request])
shared_service.serve(theirs, service, os.pidfd_open(os.getppid()))
"""


def test_a_compiler_that_hangs_ends_with_the_service() -> None:
    mark = new_mark()
    program = subprocess.Popen([sys.executable, "-c", HANGS], env={**environment(), MARK: mark})
    wait_until(lambda: any("sleep" in command for command in marked(mark).values()), 20, "the compiler")
    assert program.wait(10) == -signal.SIGKILL
    wait_until(lambda: not marked(mark), 2, "the end of the compiler")


def test_headers_that_a_program_uses_are_not_evicted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    class Fake:
        """A server of cicc whose process does nothing."""

        def __init__(self, flavour: Flavour, includes: object, first: str) -> None:
            self.flavour, self.header_s, self.folder = flavour, 1.0, str(tmp_path / flavour.arch)
            self.process = subprocess.Popen(["sleep", "600"])

        def fits(self, flavour: Flavour, source: str) -> bool:
            return True

        def up_to_date(self) -> bool:
            return True

        def kill(self) -> None:
            self.process.kill()
            self.process.wait()

    monkeypatch.setattr(shared_service, "new_server", Fake)
    ours, theirs = shared_service.socket.socketpair()
    with ours, theirs:
        service = shared_service.SharedService(ours)

        def made(arch: str) -> list[str]:
            service._server(Flavour(arch), (), "", "")
            return [server.flavour.arch for server in service.servers.values()]

        try:
            assert made("a") == ["a"] and made("b") == ["a", "b"] and made("c") == ["a", "b", "c"]
            client = shared_service.Client(theirs, -1)
            client.server = next(iter(service.servers.values()))
            service.clients.append(client)
            assert made("b") == ["a", "c", "b"]
            assert made("d") == ["a", "b", "d"], "the least recently used one that nobody uses"
            for server in service.servers.values():
                client.server = server
                service.clients.append(shared_service.Client(theirs, -1))
                service.clients[-1].server = server
            assert made("e") == ["a", "b", "d", "e"]
        finally:
            service.clients.clear()
            for pidfd in list(service.servers):
                service._end(pidfd)
