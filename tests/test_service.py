"""`examples/service.py`, served by uvicorn: it answers while it tunes, swaps to the best so far, and ends clean."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from processes import MARK, environment, marked, new_mark, wait_until

httpx = pytest.importorskip("httpx")
pytest.importorskip("starlette")
pytest.importorskip("uvicorn")
EXAMPLES = Path(__file__).parents[1] / "examples"
A = torch.arange(1024 * 1024, dtype=torch.float32).view(1024, 1024)


class Service:
    """The application in a process of its own, on a port that is free."""

    def __init__(self, folder: Path) -> None:
        self.mark, self.log = new_mark(), folder / "log"
        self.env = {**environment(), MARK: self.mark, "XDG_CACHE_HOME": str(folder), "TMPDIR": str(folder)}
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "uvicorn", "--app-dir", str(EXAMPLES), "service:app", "--port", "0",
                 "--timeout-graceful-shutdown", "1"],
                env=self.env, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip
        wait_until(lambda: "running on" in self.log.read_text() or self.process.poll() is not None, 60, "its start")
        [self.url] = re.findall(r"running on (\S+)", self.log.read_text()) or pytest.fail(self.log.read_text())
        self.client = httpx.Client(base_url=self.url, timeout=60)

    def answer(self) -> Any:
        return self.client.post("/transpose", content=A.numpy().tobytes())

    def events(self) -> Iterator[tuple[str, Any]]:
        """Yield the messages until the service ends the stream."""
        with self.client.stream("GET", "/events") as stream:
            assert stream.headers["content-type"].startswith("text/event-stream")
            kind = ""
            for line in stream.iter_lines():
                if line.startswith("event: "):
                    kind = line.removeprefix("event: ")
                elif line.startswith("data: "):
                    yield kind, json.loads(line.removeprefix("data: "))

    def end(self) -> None:
        """Send Ctrl-C, and look that nothing is left."""
        self.process.send_signal(signal.SIGINT)
        wait_until(lambda: not marked(self.mark), 10, "the end of all processes")
        log = self.log.read_text()
        assert "Finished server process" in log and not re.search("Traceback|ERROR|Cancel ", log), log

    def close(self) -> None:
        self.client.close()
        for pid in marked(self.mark):
            os.kill(pid, signal.SIGKILL)
        self.process.wait()


@pytest.fixture(scope="module")
def service(folder_of_our_own: None) -> Iterator[Service]:
    with tempfile.TemporaryDirectory() as folder:
        service = Service(Path(folder))
        yield service
        service.close()


def test_it_answers_while_it_tunes_and_swaps_to_the_best_so_far(service: Service) -> None:
    assert service.client.get("/").headers["content-type"].startswith("text/html")
    assert service.client.post("/transpose", content=b"short").status_code == 400
    assert service.answer().status_code == 503, "no candidate can be compiled yet"
    kinds, served = [], []
    for kind, data in service.events():
        kinds.append(kind)
        if kind == "serving":
            served.append(data)
            answer = service.answer()
            assert answer.status_code == 200 and answer.content == A.T.contiguous().numpy().tobytes()
    assert kinds[0] == "started" and kinds[-1] == "ended" and kinds.count("measured") == 9
    assert kinds.index("serving") < 4 and len(served) == 3, "the default is served before the others are tried"
    assert served[0]["config"] == {"block_M": 16, "block_N": 16}
    assert served[-1]["latency_ms"] <= served[0]["latency_ms"]
    assert json.loads(service.answer().headers["x-config"]) == served[-1]["config"]
    assert [kind for kind, _ in service.events()] == kinds, "a page that comes late is told all"


def test_ctrl_c_ends_it_with_its_workers(tmp_path: Path) -> None:
    service = Service(tmp_path)
    try:
        events = service.events()
        assert next(events)[0] == "started"  # a page is open, and workers are busy
        service.end()
    finally:
        service.close()
