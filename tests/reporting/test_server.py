"""`atune report --serve`: a journal that grows, as a page on this machine alone."""

from __future__ import annotations

import http.client
import json
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from processes import environment
from reporting.test_look import DATA

from atune.errors import JournalError
from atune.reporting.server import LOOPBACK, REFRESH_S, ReportServer


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ReportServer]:
    """A server of a journal that has its first 30 lines."""
    journal = tmp_path / "run.jsonl"
    journal.write_bytes(b"".join(DATA.read_bytes().splitlines(keepends=True)[:30]))
    with ReportServer(journal) as made:
        thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield made
        made.shutdown()
        thread.join()


def asked(server: ReportServer, path: str, host: str = "") -> tuple[int, dict[str, str], str]:
    """Return status, headers and body of an answer."""
    connection = http.client.HTTPConnection(LOOPBACK, server.server_port, timeout=10)
    connection.request("GET", path, headers={"Host": host or f"{LOOPBACK}:{server.server_port}"})
    answer = connection.getresponse()
    return answer.status, dict(answer.headers), answer.read().decode()


def test_the_page_follows_the_journal_to_its_end(server: ReportServer) -> None:
    status, headers, page = asked(server, server.path)
    assert status == 200 and "The run has not finished" in page and headers["Refresh"] == str(REFRESH_S)
    server.journal.write_bytes(DATA.read_bytes())
    status, headers, page = asked(server, server.path)
    assert status == 200 and "The run has not finished" not in page and "Refresh" not in headers
    assert headers["Cache-Control"] == "no-store"


def test_an_empty_journal_is_waited_for(server: ReportServer) -> None:
    server.journal.write_bytes(b"")
    status, headers, page = asked(server, server.path)
    assert status == 200 and "has not begun" in page and headers["Refresh"] == str(REFRESH_S)


def test_a_page_is_made_once_for_each_state_of_the_journal(
    server: ReportServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = server.page()
    monkeypatch.setattr("atune.reporting.server.page_of", lambda *_: "another")
    assert server.page() is not first and server.page()[0] is first[0]
    server.journal.write_bytes(DATA.read_bytes())
    assert server.page() == (b"another", True)


def test_another_path_and_another_host_are_refused(server: ReportServer) -> None:
    """A web page may have its name resolved to this machine (DNS rebinding), and other users can reach the port."""
    assert asked(server, "/")[0] == asked(server, server.path[:-2] + "/")[0] == 404
    for host in ("example.org", f"example.org:{server.server_port}", f"{LOOPBACK}:1"):
        status, _, body = asked(server, server.path, host)
        assert status == 421 and "gemm" not in body
    assert asked(server, server.path, f"localhost:{server.server_port}")[0] == 200
    assert server.server_address[0] == LOOPBACK and len(server.path) > 20


def test_a_journal_that_cannot_be_read_is_an_answer_of_its_own(server: ReportServer) -> None:
    server.journal.unlink()
    status, _, body = asked(server, server.path)
    assert status == 503 and "No such file" in body
    with pytest.raises(JournalError, match="No such file"):
        server.page()


def test_the_command_names_the_address_and_ends_by_an_interrupt() -> None:
    command = [sys.executable, "-m", "atune", "report", str(DATA), "--serve", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment()) as run:
        assert run.stdout is not None
        url = json.loads(run.stdout.readline())["url"]
        connection = http.client.HTTPConnection(*url.split("/")[2].split(":"), timeout=10)
        connection.request("GET", "/" + url.split("/", 3)[3])
        assert connection.getresponse().status == 200
        run.send_signal(signal.SIGINT)
        assert run.wait(10) == 0, run.stderr and run.stderr.read()
