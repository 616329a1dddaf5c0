"""Which versions tests are for."""

from importlib.metadata import version

import pytest

from atune.stages.cicc import TILELANG

needs_cicc = pytest.mark.skipif(
    version("tilelang") not in TILELANG, reason=f"cicc is not known with tilelang {version('tilelang')}"
)
"""For tests that need cicc to be in effect."""
