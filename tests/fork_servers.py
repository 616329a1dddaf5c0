"""Fork servers of tests, which import what a test says, and keep their files where it says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from atune.workers.pool import ForkServer
from atune.workers.server import ForkServerProcess


def fork_server(
    run_dir: str, preload: Sequence[str] = (), env: Mapping[str, str] | None = None, **options: Any
) -> ForkServer:
    """Start a server that imports `preload`, with `env` in addition to this program's environment."""
    return ForkServer(ForkServerProcess(preload, Path(run_dir), env=env or {}), **options)
