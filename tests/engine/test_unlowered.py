"""A run on the CPU of a kernel that is written for CUDA ends early; one in which anything lowers does not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from atune.engine.interfaces import CompileHints
from atune.errors import NoWinner
from atune.frontends.api.tuner import tune
from atune.testing import FakeMachine, Script

pytestmark = pytest.mark.anyio
ALL: dict[int, Any] = dict.fromkeys(range(100), "lower")


class WithoutGpu(FakeMachine):
    """A machine on which ``auto`` means the CPU."""

    def hints(self, measuring: int) -> CompileHints:
        return CompileHints(alike=16)


async def test_a_kernel_that_the_cpu_cannot_have_ends_after_some_equal_failures(tmp_path: Path) -> None:
    with pytest.raises(NoWinner) as caught:
        await tune(machine=WithoutGpu(100, Script(fails=ALL)), journal=tmp_path / "j")
    result = caught.value.result
    assert 16 <= result.failed <= 16 + 2 and result.remaining == 100 - result.failed
    assert result.reason == "unlowered"
    assert "--compile-only --target sm_90a" in str(caught.value) and "atune resume" in str(caught.value)
    with pytest.raises(NoWinner) as caught:  # as `resume` does it, whose target is the header's
        await tune(machine=FakeMachine(100, Script(fails=ALL)), journal=tmp_path / "j")
    assert caught.value.result.failed == 100


async def test_a_run_in_which_one_lowered_tries_all() -> None:
    lowered = {index: kind for index, kind in ALL.items() if index}
    result = await tune(machine=WithoutGpu(100, Script(fails=lowered), default=0))
    assert (result.measured, result.failed, result.remaining) == (1, 99, 0)


async def test_failures_of_another_kind_end_nothing() -> None:
    with pytest.raises(NoWinner) as caught:
        await tune(machine=WithoutGpu(100, Script(fails=dict.fromkeys(range(100), "compile"))))
    assert caught.value.result.failed == 100
