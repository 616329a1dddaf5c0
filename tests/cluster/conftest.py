"""The nodes of these tests are in one program. Each keeps its fork server from one test to the next."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from processes import MARK, new_mark

from atune.workers.local import machine
from atune.workers.processes import pool
from atune.workers.processes import server as servers
from atune.workers.processes.server import ForkServerProcess, Parked

NODES = 2


class ParkedOnNodes(Parked):
    """Idle servers: with the same imports, one for each node."""

    def take(self, key: tuple[Any, ...]) -> ForkServerProcess | None:
        imports, *surroundings = key
        for node in range(NODES):
            if (found := super().take(((imports, node), *surroundings))) is not None:
                return found
        return None

    def park(self, key: tuple[Any, ...], server: ForkServerProcess) -> None:
        imports, *surroundings = key
        taken = {node for (_, node), *_ in self._servers}
        super().park(((imports, min({*range(NODES)} - taken, default=0)), *surroundings), server)


@pytest.fixture(scope="package", autouse=True)
def mark() -> Iterator[str]:
    """Mark all processes. Nodes park their servers also if they are lost; workers end all the same."""
    found = ParkedOnNodes()
    found.begin_series()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(MARK, mark := new_mark())
        for module in (servers, pool, machine):
            patch.setattr(module, "parked", found)
        yield mark
    found.shutdown()
