"""A cicc that has parsed the headers for Hopper, for all tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from atune.stages.cicc_server import Server, includes_for
from atune.stages.cicc_source import Flavour


@pytest.fixture(scope="session")
def hopper_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(Flavour("sm_90a"), includes_for("sm_90a"), str(tmp_path_factory.mktemp("server")))
    yield server
    server.kill()
