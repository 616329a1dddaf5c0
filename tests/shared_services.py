"""Clients of the resident server's compile service, for tests; as a script, one that is to be killed."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import msgspec
import residents
from services import children

from atune.local.entry_points import SERVICE_FIND, SERVICE_HEADER, SERVICE_LISTEN, SHARED_SERVICE
from atune.local.resident_control import _env
from atune.processes.messages import ServiceReady
from atune.processes.resident_client import SharedWorker, service
from atune.stages.compile.lowering import Blob

ARCH = "sm_90a"
INCLUDES = "#include <tl_templates/cuda/reduce.h>\n#include <tl_templates/cuda/debug.h>\n"
KERNEL = 'extern "C" __global__ void k(float* x) { x[threadIdx.x] *= FACTOR; }\n'


@asynccontextmanager
async def connected(**env: str) -> AsyncGenerator[SharedWorker]:
    """Connect to the service for this program with `env` added to its environment."""
    async with service(residents.LIGHT, SHARED_SERVICE, env={**_env(), **env}, nice=0) as worker:
        yield worker


async def ask(worker: SharedWorker, entry: str, request: object) -> ServiceReady:
    reply = await worker.call(entry, msgspec.msgpack.encode(request), 100.0)
    return msgspec.msgpack.decode(reply, type=ServiceReady)


async def header(worker: SharedWorker, arch: str = ARCH) -> ServiceReady:
    return await ask(worker, SERVICE_HEADER, arch)


async def find(worker: SharedWorker) -> ServiceReady:
    return await ask(worker, SERVICE_FIND, ARCH)


async def listen(
    worker: SharedWorker, folder: Path, source: str = INCLUDES + KERNEL, **configs: object
) -> ServiceReady:
    """Ask for a cicc that compiles `source`, which is linked in `folder`."""
    folder.mkdir(exist_ok=True)
    blob = Blob(symbol="k", host="", device="", source=source, source_key="", pass_configs=configs)
    return await ask(worker, SERVICE_LISTEN, (msgspec.msgpack.encode(blob), ARCH, str(folder)))


async def main(forks: bool) -> None:
    """Have headers parsed, print the pids of the service and its cicc, and stay until killed."""
    async with connected() as worker:
        assert (await header(worker)).ok
        child = os.fork() if forks else -1
        if child == 0:
            time.sleep(600)  # it holds the sockets, too
            os._exit(0)
        print(json.dumps([child, worker.pid, *children(worker.pid)]), flush=True)
        await anyio.sleep_forever()


if __name__ == "__main__":
    anyio.run(main, sys.argv[1] == "forks")
