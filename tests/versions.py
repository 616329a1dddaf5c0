"""Which versions tests are for."""

from importlib.metadata import version

import pytest

from atune.stages.accelerators.registry import TILELANG

accelerated = pytest.mark.skipif(
    version("tilelang") not in TILELANG, reason=f"the accelerators do not know tilelang {version('tilelang')}"
)
"""For tests that need an accelerator to be in effect."""
