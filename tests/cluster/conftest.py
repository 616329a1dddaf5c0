"""The nodes of these tests are in one program."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from processes import MARK, new_mark


@pytest.fixture(scope="package", autouse=True)
def mark() -> Iterator[str]:
    """Mark all processes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(MARK, mark := new_mark())
        yield mark
