"""The nodes of these tests are in one program. Each keeps its fork server from one test to the next."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from processes import MARK, new_mark

from atune.workers.local import workers
from atune.workers.processes import server as servers
from atune.workers.processes.server import ForkServerProcess, Parked


class ParkedOnNodes(Parked):
    """One idle server for each node."""

    def __init__(self) -> None:
        super().__init__()
        self.others: list[ForkServerProcess] = []

    def pids(self) -> set[int]:
        return {server.pid for server in (self.server, *self.others) if server is not None}

    def take(self) -> ForkServerProcess | None:
        found = super().take()
        self.server = self.others.pop() if self.others else None
        return found

    def park(self, server: ForkServerProcess | None) -> None:
        if server is not None and self.server is not None and not self.others:
            self.others.append(self.server)
            self.server = None
        super().park(server)


@pytest.fixture(scope="package", autouse=True)
def mark() -> Iterator[str]:
    """Mark all processes."""
    found = ParkedOnNodes()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(MARK, mark := new_mark())
        for module in (servers, workers):
            patch.setattr(module, "parked", found)
        yield mark
    for server in filter(None, (found.server, *found.others)):
        server.destroy()
