"""A compiler that does not end is killed long before the user's deadline, once the others' times are known."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from processes import MARK, marked, new_mark
from workloads import scale

import atune
from atune.engine import compile_cost
from atune.journal.events import BuildFailed
from atune.model.settings import CompileSettings

SLOW = 977
"""The factor whose source the compiler never finishes. It is proposed early, so that no time is known then."""


@pytest.fixture
def mark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Put a g++ on PATH that hangs for one source, and mark the run's processes."""
    script, mark = tmp_path / "g++", new_mark()
    script.write_text(
        '#!/bin/sh\nfor a; do case "$a" in *.cpp) grep -q 9.77 "$a" && sleep 300;; esac; done\n'
        'PATH="${PATH#*:}" exec g++ "$@"\n'
    )
    script.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setenv(MARK, mark)
    monkeypatch.setenv("ATUNE_WARM", "off")
    return mark


def test_a_compile_that_hangs_is_killed_and_the_run_goes_on(mark: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compile_cost, "FLOOR_S", 2.0)
    monkeypatch.setattr(compile_cost, "FACTOR", 4.0)
    events: list[atune.Event] = []
    left: list[dict[int, str]] = []

    def listen(event: atune.Event) -> None:
        events.append(event)
        if isinstance(event, BuildFailed):
            left.append({pid: line for pid, line in marked(mark).items() if line.startswith("sleep")})

    result = atune.run(
        atune.Workload(scale, atune.Space(factor=[2, SLOW, *range(3, 13)]), arguments={"n": 512}),
        target="c", strategy="exhaustive", on_event=listen,
        compile=CompileSettings(workers=2, group_size=1, store=False),
    )  # fmt: skip
    [failed] = [event for event in events if isinstance(event, BuildFailed)]
    assert (failed.index, failed.kind) == (1, "hopeless"), failed
    assert left == [{}] and result.measured == 11 and result.wall_s < 100
