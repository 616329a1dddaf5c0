"""The report of a journal that still grows, for a browser on this machine."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from atune.errors import JournalError
from atune.journal.events import RunFinished, RunInterrupted
from atune.journal.reader import read
from atune.reporting.report import page_of

LOOPBACK = "127.0.0.1"
REFRESH_S = 3
"""Seconds after which a browser asks again, until the run has ended."""

WAITING = b'<!doctype html><html lang="en"><meta charset="utf-8"><title>atune</title><p>The run has not begun yet.</p>'
"""What is shown of a journal that is still empty."""


def served_run(journal: Path) -> tuple[str, bool]:
    """Return the report of a journal, and whether its run has ended."""
    events = read(journal)
    return page_of(events, journal), bool(events) and isinstance(events[-1], RunFinished | RunInterrupted)


class ReportServer(ThreadingHTTPServer):
    """Serves the report of `journal` at `url`, on this machine alone.

    `made` returns the page for it, and whether that is the last one; with another one `journal` may be a folder.

    Other users of the machine can reach the port, and web pages can have a browser ask it. So the path has a secret,
    and a request that names another host is refused.
    """

    daemon_threads = True

    def __init__(self, journal: Path, made: Callable[[Path], tuple[str, bool]] = served_run) -> None:
        super().__init__((LOOPBACK, 0), _Handler)
        self.journal, self._made = journal, made
        self.path = f"/{secrets.token_urlsafe(16)}/"
        self._seen: list[tuple[int, int]] = []
        self._page, self._ended = b"", False
        self._lock = threading.Lock()

    @property
    def url(self) -> str:
        """Where the page is."""
        return f"http://{LOOPBACK}:{self.server_port}{self.path}"

    def page(self) -> tuple[bytes, bool]:
        """Return the page, and whether the run has ended. It is made again only if the journal has changed.

        Raises `JournalError` if the journal cannot be read.
        """
        with self._lock:
            try:
                found = [file.stat() for file in (self.journal, *sorted(self.journal.glob("*.jsonl")))]
            except OSError as error:
                raise JournalError(f"cannot read {self.journal}: {error.strerror}") from error
            if not any(file.st_size for file in found):
                return WAITING, False
            seen = [(file.st_mtime_ns, file.st_size) for file in found]
            if seen != self._seen:
                page, self._ended = self._made(self.journal)
                self._page, self._seen = page.encode(), seen
            return self._page, self._ended


class _Handler(BaseHTTPRequestHandler):
    server: ReportServer

    def do_GET(self) -> None:
        hosts = {f"{name}:{self.server.server_port}" for name in (LOOPBACK, "localhost")}
        if self.headers.get("Host") not in hosts:
            self.send_error(HTTPStatus.MISDIRECTED_REQUEST)
        elif not secrets.compare_digest(self.path.encode(), self.server.path.encode()):
            self.send_error(HTTPStatus.NOT_FOUND)
        else:
            try:
                page, ended = self.server.page()
            except JournalError as error:
                self.send_error(HTTPStatus.SERVICE_UNAVAILABLE, explain=str(error))
                return
            self.send_response(HTTPStatus.OK)
            headers = {"Content-Type": "text/html; charset=utf-8", "Content-Length": str(len(page))}
            headers |= {"Cache-Control": "no-store", "Referrer-Policy": "no-referrer", "X-Frame-Options": "DENY"}
            headers |= {} if ended else {"Refresh": str(REFRESH_S)}
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(page)

    def log_message(self, format: str, *args: object) -> None:
        """Write nothing: stderr is the user's terminal."""
