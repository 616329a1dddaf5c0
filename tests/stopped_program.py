"""A program for test_stopped: one worker, in a call that ends when a pipe closes. Says how the call ended."""

from __future__ import annotations

import json
import sys

import anyio
from fork_servers import fork_server

from atune.errors import WorkerTimeout


async def main(run_dir: str, gate: str, limit: str) -> None:
    async with fork_server(run_dir) as server:
        worker = await server.spawn("test")
        await worker.call("pool_targets:echo", b"")
        print(json.dumps(server.pids()), flush=True)
        try:
            await worker.call("pool_targets:wait_at", gate.encode(), float(limit))
            print("answered", flush=True)
        except WorkerTimeout:
            print("timeout", flush=True)


anyio.run(main, *sys.argv[1:])
