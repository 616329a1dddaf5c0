"""A run that was seen on an H200 with 16 workers: 72 candidates, 18 kernels, six of them with loops of 4096 iterations.

Those took 10 to 13 s each, the others 0.15 s. Two to four were in a library, and the last was built after 25.7 s.
"""

from __future__ import annotations

from typing import Any

import pytest
from fake_runs import Timed, tuned

from atune.engine import compile_cost
from atune.journal.events import ArtifactBuilt, BuildFailed
from atune.model.artifact import StaticFacts
from atune.model.layouts import Layouts, LoopFacts
from atune.model.settings import CompileSettings
from atune.testing import FakeMachine, Script

pytestmark = pytest.mark.anyio
SAME_AS = [
    0, 0, 3, 3, 5, 5, 5, 3, 3, 3, 5, 5, 12, 12, 20, 20, 16, 16, 16, 20, 20, 20, 16, 16,
    24, 24, 32, 32, 34, 34, 34, 32, 32, 32, 34, 34, 36, 36, 45, 45, 40, 40, 40, 45, 45, 45, 40, 40,
    48, 48, 56, 56, 58, 58, 58, 56, 56, 56, 58, 58, 60, 60, 62, 62, 64, 64, 64, 62, 62, 62, 64, 64,
]  # fmt: skip
"""For each candidate, one that has its code."""
ITERATIONS = {3: 64, 5: 64, 40: 32, 45: 32, 16: 128, 20: 128, 58: 64, 56: 64, 34: 256, 62: 128, 32: 256, 64: 128}
LONG_S = {0: 12.6, 12: 12.4, 24: 10.5, 36: 11.3, 48: 12.4, 60: 11.3}
"""Seconds that the kernels with 4096 iterations took; 0 is of the default configuration."""
LIBRARY_S, COMPILE_S = 0.1, 0.12


def kernel(config: dict[str, Any]) -> int:
    return SAME_AS[config["x"]]


def facts(config: dict[str, Any]) -> StaticFacts:
    loop = LoopFacts((4, 4096), ITERATIONS.get(kernel(config), 4096))
    return StaticFacts(accumulators=4, source_bytes=2000, layouts=Layouts(loops=(loop,)))


async def compiled(*, loops: bool) -> tuple[FakeMachine, Timed]:
    """Run it. `loops`: whether the facts tell of loops, as without them an older version scheduled."""
    script = Script(
        code_key=lambda config: str(kernel(config)),
        facts=facts if loops else lambda config: StaticFacts(accumulators=4, source_bytes=2000),
        lower_s=lambda config: 0.08 + 0.01 * (config["x"] % 9),
        library_s=LIBRARY_S,
        compile_s=lambda config: LONG_S.get(kernel(config), COMPILE_S),
        measure_s=0.05,
    )
    machine = FakeMachine(72, script, workers=16, default=0)
    return machine, await tuned(machine, compile=CompileSettings())


def end_s(run: Timed) -> float:
    """Return the virtual seconds until the last library was built or failed."""
    return max(seconds for seconds, event in run.events if isinstance(event, ArtifactBuilt | BuildFailed))


def long_groups(machine: FakeMachine) -> list[tuple[int, ...]]:
    return [group for group in machine.groups if any(SAME_AS[index] in LONG_S for index in group)]


async def test_long_loops_are_compiled_alone_and_at_once_so_that_compiling_takes_half_as_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(compile_cost, "FLOOR_S", 1000.0)  # otherwise they are hopeless
    before, run_before = await compiled(loops=False)
    after, run_after = await compiled(loops=True)
    assert max(map(len, long_groups(before))) >= 2
    assert [len(group) for group in long_groups(after)] == [1] * len(LONG_S)
    assert after.most_at_once["build"] >= len(LONG_S)
    assert end_s(run_after) < 0.6 * end_s(run_before)
    assert end_s(run_after) < max(LONG_S.values()) + 1.5  # its own time, and lowering all before it
    assert run_after.result.measured == run_before.result.measured == len(set(SAME_AS))


async def test_the_hopeless_among_them_end_at_ten_seconds_but_not_the_default_configuration() -> None:
    _, run = await compiled(loops=True)
    failed = run.of(BuildFailed)
    assert len(failed) == len(LONG_S) - 1 and all(event.kind == "hopeless" for event in failed)
    ends_s = [seconds for seconds, event in run.events if isinstance(event, BuildFailed)]
    assert max(ends_s) < min(LONG_S.values()) + 1.5
    assert any(SAME_AS[index] == 0 for event in run.of(ArtifactBuilt) for index in event.indices)
