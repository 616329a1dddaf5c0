"""A plugin for pytest: every fork server of the tests is a session of a resident server, where that may be.

`test_resident_promises.py` runs the tests of the fork server with it. The resident server has nothing imported, so a
test whose server imports something that matters has a server of its own.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from atune.local import resident_control
from atune.local.server_env import server_env
from atune.processes import resident_client
from atune.processes.resident_client import NoSession, ResidentSession
from atune.processes.resident_place import Place
from atune.processes.server import ForkServerProcess, Order, Process, Program

START = "from atune.local import resident_control as r; r.PRELOAD = (); r.start(600)"
used: list[str] = []
at_start: dict[str, str] = {}
init, wanted = ForkServerProcess.__init__, resident_client.wanted


def launch(order: Order) -> Process:
    """Start a session, blocking, or a server of the test's own."""
    session = None
    try:
        if set(order.preload) - {"json"}:
            raise NoSession("the test's own imports")
        session = ResidentSession(Place(), order)
        session.hear(30)
        used.append("session")
        return session
    except NoSession:
        if session is not None:
            session.forget()
        used.append("own")
        return Program(order)


def fitting(preload: Sequence[str], env: Mapping[str, str]) -> dict[str, Any]:
    """Ask as the resident server was started, whatever variables a test has set."""
    return wanted([], {**env, **server_env(), **at_start})


def patched(process: ForkServerProcess, *arguments: Any, **options: Any) -> None:
    init(process, *arguments, **{**options, "launch": launch})


@pytest.fixture(scope="session", autouse=True)
def sessions(quick_compiler: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    folder = tmp_path_factory.mktemp("runtime")
    folder.chmod(0o700)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_RUNTIME_DIR", str(folder))
        patch.setattr(resident_control, "PRELOAD", ())
        patch.setattr(resident_client, "wanted", fitting)
        patch.setattr(ForkServerProcess, "__init__", patched)
        at_start.update({name: os.environ[name] for name in ("PYTHONPATH", "TMPDIR") if name in os.environ})
        subprocess.run([sys.executable, "-c", START], check=True)  # no child of the tests', which count theirs
        yield
        resident_control.stop()
    Path(os.environ["ATUNE_PROMISES"]).write_text(f"{used.count('session')} {used.count('own')}")
