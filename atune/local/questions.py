"""Questions about a workload that need its file loaded, in a worker, and nothing compiled or measured."""

from __future__ import annotations

import functools
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import msgspec

from atune.local.entry_points import LOCATE, PRELOAD
from atune.local.workers import Workers, process_folders, server_env
from atune.processes.pool import ForkServer
from atune.processes.server import ServerProcess, parked, surroundings
from atune.system.folders import run_folder, server_folder
from atune.workload.kernel_site import KernelSite, Sought
from atune.workload.workload import WorkloadRef


@asynccontextmanager
async def asking(workload: WorkloadRef) -> AsyncGenerator[Workers, None]:
    """Start the fork server, or take the one that is parked, to ask workers of it; kill them on leaving."""
    with run_folder() as run_dir:
        kind = (PRELOAD, *surroundings())
        process = parked.take(kind) or ServerProcess(PRELOAD, *server_folder(), env=server_env())
        async with ForkServer(process=process, park=functools.partial(parked.park, kind)) as server:
            workers = Workers(workload)
            workers.attach(server, process_folders(run_dir))
            yield workers


async def locate_kernel(sought: Sought) -> KernelSite:
    """Return where a kernel is defined, as a worker finds it that runs its file. Raises `WorkloadError`."""
    async with asking(sought.ref) as workers:
        reply = await workers.ask_once("locate", LOCATE, msgspec.msgpack.encode(sought))
    return msgspec.msgpack.decode(reply, type=KernelSite)
