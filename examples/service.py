"""A web service that tunes its kernel while it answers, with a page that shows it. Needs starlette and uvicorn.

python examples/service.py                      # http://127.0.0.1:8000, on a GPU if there is one
uvicorn --app-dir examples service:app          # the same
"""

from __future__ import annotations

import asyncio
import json
import signal
import tempfile
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import tilelang.language as T
import torch
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Route

import atune
from atune.errors import AtuneError
from atune.events import BenchmarkFailed, BuildFailed, CandidateMeasured, CandidateProposed, Event, RunStarted

M = N = 1024
PAGE = Path(__file__).with_suffix(".html")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def transpose(M: int, N: int, block_M: int = 16, block_N: int = 16) -> Any:
    """B = A^T, in float32."""

    @T.prim_func
    def main(A: T.Tensor((M, N), "float32"), B: T.Tensor((N, M), "float32")):
        with T.Kernel(T.ceildiv(N, block_N), T.ceildiv(M, block_M)) as (bx, by):
            for i, j in T.Parallel(block_M, block_N):
                B[bx * block_N + j, by * block_M + i] = A[by * block_M + i, bx * block_N + j]

    return main


WORKLOAD = atune.Workload(
    transpose,
    atune.Space(block_M=[4, 16, 64], block_N=[4, 16, 256]),
    arguments={"M": M, "N": N},
    reference=lambda A: A.T.contiguous(),
)


class Tuned:
    """Tunes in the background, and holds the fastest kernel so far and messages for the page."""

    BUDGETS = (1, "40%", None)
    """Budgets of the parts of the run. The first part gives the default configuration, the others faster ones."""

    def __init__(self) -> None:
        self.serving: tuple[Any, Any] | None = None
        """The fastest kernel so far, with its configuration."""
        self.messages: list[str] = []
        self.ended = False
        self._more = anyio.Event()
        self._configs: dict[int, Any] = {}
        self._seen = -1

    async def tune(self) -> None:
        why = ""
        try:
            with tempfile.TemporaryDirectory() as folder:
                for budget in self.BUDGETS:
                    await self._tune(Path(folder) / "run.jsonl", budget)
        except AtuneError as error:  # the service continues with the kernel that it has
            why = str(error)
        self._say("ended", why=why)
        self.end_streams()

    async def _tune(self, journal: Path, budget: int | str | None) -> None:
        options = {"journal": journal, "budget": budget, "strategy": "exhaustive", "progress": False}
        make = partial(atune.Tuner, WORKLOAD, **options)
        async with await anyio.to_thread.run_sync(make) as tuner:  # it reads files, so not in the event loop
            async for event in tuner.events():
                self._see(event)
            result = await tuner.result()
        kernel = await anyio.to_thread.run_sync(lambda: result.kernel)
        self.serving = kernel, result.best_config  # a request in progress keeps its kernel
        self._say("serving", config=result.best_config, latency_ms=result.latency_ms)

    def _see(self, event: Event) -> None:
        if event.seq <= self._seen:  # seen in an earlier part
            return
        self._seen = event.seq
        match event:
            case RunStarted():
                self._say("started", total=event.total)
            case CandidateProposed():
                self._configs[event.index] = event.config
            case CandidateMeasured():
                self._say("measured", config=self._configs[event.index], latency_ms=event.timing.latency_ms)
            case BuildFailed() | BenchmarkFailed():
                self._say("failed", config=self._configs[event.index], message=event.message)

    def _say(self, event: str, **data: Any) -> None:
        self.messages.append(f"event: {event}\ndata: {json.dumps(data)}\n\n")
        self._more.set()
        self._more = anyio.Event()

    def end_streams(self) -> None:
        """End the pages' streams after the last message, because a server that shuts down waits for them."""
        self.ended = True
        self._more.set()

    async def stream(self) -> AsyncIterator[str]:
        """Yield all messages from the start of the tuning until its end."""
        sent = 0
        while True:
            for message in self.messages[sent:]:
                sent += 1
                yield message
            if self.ended and sent == len(self.messages):
                return
            if sent == len(self.messages):
                await self._more.wait()


@contextmanager
def called_at_shutdown(call: Callable[[], None]) -> Iterator[None]:
    """Call `call` at Ctrl-C and SIGTERM, before the server's own handlers, in its main thread."""
    former, loop = {}, asyncio.get_running_loop()

    def handle(number: int, frame: Any) -> None:
        loop.call_soon_threadsafe(call)
        former[number](number, frame)

    if threading.current_thread() is threading.main_thread():
        former = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in former.items():
        signal.signal(number, handler)


@asynccontextmanager
async def lifespan(app: Starlette) -> AsyncIterator[None]:
    app.state.tuned = tuned = Tuned()
    async with anyio.create_task_group() as background:
        background.start_soon(tuned.tune)
        with called_at_shutdown(tuned.end_streams):
            yield
        background.cancel_scope.cancel()  # ends the workers and their compilers, too


async def page(request: Request) -> Response:
    return FileResponse(PAGE)


async def events(request: Request) -> Response:
    return StreamingResponse(request.app.state.tuned.stream(), media_type="text/event-stream")


async def answer(request: Request) -> Response:
    """Return the transposed matrix of a request, both as bytes."""
    tuned, body = request.app.state.tuned, await request.body()
    if len(body) != 4 * M * N:
        return JSONResponse({"error": f"the body must be {M} × {N} float32 values"}, 400)
    if tuned.serving is None:
        return JSONResponse({"error": "no kernel yet"}, 503, {"Retry-After": "1"})
    kernel, config = tuned.serving

    def call() -> bytes:
        A = torch.frombuffer(bytearray(body), dtype=torch.float32).to(DEVICE).view(M, N)
        return kernel(A).cpu().numpy().tobytes()

    return Response(
        await anyio.to_thread.run_sync(call), media_type="application/octet-stream",
        headers={"X-Config": json.dumps(config)},
    )  # fmt: skip


app = Starlette(
    lifespan=lifespan,
    routes=[Route("/", page), Route("/events", events), Route("/transpose", answer, methods=["POST"])],
)

if __name__ == "__main__":
    uvicorn.run(app, timeout_graceful_shutdown=1)  # pages keep their streams open
