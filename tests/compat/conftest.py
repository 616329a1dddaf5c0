"""Each test is warned as if it were a program of its own."""

from __future__ import annotations

import pytest

from atune.compat.tilelang import environment


@pytest.fixture(autouse=True)
def all_warnings() -> None:
    environment._warned.clear()
