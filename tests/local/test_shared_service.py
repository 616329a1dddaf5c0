"""Runs with the compile service of a resident server: their headers are parsed once, and each fallback is a run."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import residents
from processes import wait_until
from services import artifacts, children, lowered, until
from versions import accelerated

import atune
from atune.errors import WorkerError
from atune.local import service_process
from atune.model.settings import CompileSettings
from atune.processes.resident_client import SharedWorker
from atune.processes.server import services

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not installed"),
    accelerated,
]
TESTS = Path(__file__).parents[1]
CICC = CompileSettings(workers=1, accelerate="cicc")


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    with residents.with_tilelang(tmp_path_factory.mktemp("runtime")) as pid:
        yield pid


@pytest.fixture(autouse=True)
def afresh(server: int) -> Iterator[None]:
    """End the services that other tests have left."""
    yield
    atune.shutdown()
    if residents.resident_control.status(20.0) is None:
        return  # a test has killed the server
    for pid in residents.status()["services"]:
        os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not residents.status()["services"], 5, "the services' end")


async def built(n: int = 1) -> tuple[str, str, int]:
    """Compile one candidate in a run of its own. Return its compiler, why, and the service's process."""
    async with lowered(n, CICC) as (machine, worker, group):
        [artifact] = artifacts(list(await worker.build(group[n - 1 :])))
        return artifact.compiler, artifact.why, machine.service.pid


@pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])
async def test_the_next_run_finds_the_headers_parsed_and_says_what_that_saves() -> None:
    first, second = await built(1), await built(2)
    assert first[0] == second[0] == "cicc" and first[2] == second[2]
    assert residents.status()["services"] == [first[2]] and not services._servers
    assert "headers parsed by the resident server in " in first[1]
    assert "headers parsed before by the resident server, which saves " in second[1]


async def test_two_runs_at_once_share_one_cicc() -> None:
    async with lowered(1, CICC) as (one, first, group), lowered(2, CICC) as (other, second, groups):
        for machine, worker, member in ((one, first, group[0]), (other, second, groups[1])):
            assert machine.service.ready, machine.service.why
            assert artifacts(list(await worker.build([member])))[0].compiler == "cicc"
        assert one.service.pid == other.service.pid and len(children(one.service.pid)) == 1


async def test_a_service_that_is_killed_leaves_the_run_to_nvcc_and_the_next_has_another() -> None:
    async with lowered(1, CICC) as (machine, worker, group):
        assert machine.service.ready, machine.service.why
        pid = machine.service.pid
        os.kill(pid, signal.SIGKILL)
        await until(machine, lambda: not machine.service.ready, 5)
        [artifact] = artifacts(list(await worker.build(group)))
        assert artifact.compiler == "nvcc" and f"process {pid}, does not answer" in artifact.why
    compiler, why, another = await built()
    assert compiler == "cicc" and another != pid and "by the resident server in" in why


async def test_a_cancelled_run_leaves_the_service_to_the_next() -> None:
    with pytest.raises(ZeroDivisionError):
        async with lowered(1, CICC) as (machine, _, _):
            pid = machine.service.pid
            raise ZeroDivisionError
    compiler, why, again = await built()
    assert (compiler, again) == ("cicc", pid) and "which saves" in why


async def fails_at_once(*arguments: Any) -> bytes:
    raise WorkerError("its machine is out of order")


@asynccontextmanager
async def no_service(*arguments: Any, **options: Any) -> Any:
    raise service_process.NoSession("it has ended")
    yield


async def fails_later(worker: SharedWorker, entry: str, payload: bytes, timeout_s: float) -> bytes:
    """Answer the first request, and be killed in the second one."""
    if entry != service_process.SERVICE_LISTEN:
        return await call(worker, entry, payload, timeout_s)
    os.kill(worker.pid, signal.SIGKILL)
    return await call(worker, entry, payload, timeout_s)


async def stops(worker: SharedWorker, entry: str, payload: bytes, timeout_s: float) -> bytes:
    os.kill(worker.pid, signal.SIGSTOP)
    assert timeout_s == service_process.SHARED_TIMEOUT_S
    return await call(worker, entry, payload, 0.2)


call = SharedWorker.call


@pytest.mark.parametrize(
    ("where", "what"),
    [
        ((service_process, "service"), no_service),
        ((SharedWorker, "call"), fails_at_once),
        ((SharedWorker, "call"), fails_later),
        ((SharedWorker, "call"), stops),
    ],
    ids=["there is none", "it fails", "it is killed", "it hangs"],
)
async def test_where_it_fails_the_run_has_a_service_of_its_own(
    where: tuple[object, str], what: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(*where, what)
    compiler, why, pid = await built()
    assert compiler == "cicc" and "; headers parsed in " in why and pid not in residents.status()["services"]
    [process] = services._servers.values()
    assert [worker.pid for worker in process.lasting] == [pid]


async def test_a_program_that_goes_on_after_the_resident_server_was_killed(server: int) -> None:
    """Last: the server is gone. Its session is parked, and the run after it has a compile service of its own."""
    assert "by the resident server in" in (await built())[1]
    service = residents.status()["services"]
    os.kill(server, signal.SIGKILL)
    compiler, why, pid = await built()
    assert compiler == "cicc" and "; headers parsed in " in why and pid not in service
    wait_until(lambda: not Path(f"/proc/{service[0]}").exists() or not children(service[0]), 5, "the service's end")
