"""A kernel that writes out of bounds, or stops writing, fails; the good ones next to it are measured."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import atune
from atune.journal.events import BenchmarkFailed, BenchmarkRepeated, DeviceLost, Event
from atune.journal.result import TuneResult
from atune.model.settings import BenchmarkSettings, CompileSettings
from atune.workers.supervised import NOT_ALONE

KERNELS = Path(__file__).parents[1] / "bounds_kernels.py"
ON_GPU = pytest.param("cuda", marks=[pytest.mark.gpu, pytest.mark.timeout(180)])
TARGETS = [pytest.param("c"), ON_GPU]


def tuned(name: str, target: str, **options: Any) -> tuple[TuneResult, list[Event]]:
    events: list[Event] = []
    name, device = (name, "cpu") if target == "c" else (f"{name}_GPU", "0")
    settings = BenchmarkSettings(benchmark_timeout_s=20, **options)
    compiling = CompileSettings(workers=1, store=False)
    result = atune.run(
        f"{KERNELS}:{name}",
        target=target,
        devices=[device],
        compile=compiling,
        benchmark=settings,
        on_event=events.append,
    )
    return result, events


def repeated_for_others(events: list[Event]) -> list[int]:
    """Return the candidates that were repeated because of those that ran before them."""
    repeated = [e for e in events if isinstance(e, BenchmarkRepeated)]
    return [e.index for e in repeated if NOT_ALONE in e.reason]


@pytest.mark.parametrize("target", TARGETS)
def test_blocks_that_reach_past_the_end_fail_and_all_others_are_measured(target: str) -> None:
    """N = 100 without bounds checks: blocks of 64 and 1024 write 28 and 924 floats too many, next to good ones."""
    result, events = tuned("BLOCKED", target)
    failed = {record.config["block"]: (record.kind, record.message) for record in result.failures}
    assert failed == {
        block: ("out_of_bounds", f"parameter 1: written up to {n} bytes after its end")
        for block, n in ((64, 4 * 28), (1024, 4 * 924))
    }
    assert result.measured == 8 and all(m.checked for m in result.measurements)
    assert not repeated_for_others(events)
    assert sum(isinstance(e, DeviceLost) for e in events) == 2  # what else they wrote is not known


@pytest.mark.parametrize("target", TARGETS)
def test_an_extern_that_writes_outside_fails_alone_and_so_does_one_that_is_right_once(target: str) -> None:
    result, events = tuned("CALLING", target, n_final=2)
    failed = {record.config["mode"]: (record.kind, record.message) for record in result.failures}
    assert failed == {
        "past the end": ("out_of_bounds", "parameter 1: written up to 64 bytes after its end"),
        "before the start": ("out_of_bounds", "parameter 1: written up to 64 bytes before its start"),
        "far past the end": ("out_of_bounds", "parameter 1: written up to 16388 bytes after its end"),
        "once": (
            "unwritten",
            "output 0: 64 of 64 elements were not written, the first at [0] (after it was timed)",
        ),
    }
    assert result.measured == 5 and not repeated_for_others(events)


@pytest.mark.parametrize("target", TARGETS)
def test_without_a_check_of_the_outputs_the_bounds_are_kept(target: str) -> None:
    result, events = tuned("BLOCKED", target, check=False, n_final=0)
    assert {e.kind for e in events if isinstance(e, BenchmarkFailed)} == {"out_of_bounds"} and result.measured == 8


def test_a_process_in_which_a_candidate_opened_all_files_is_replaced() -> None:
    events: list[Event] = []
    result = atune.run(
        f"{KERNELS}:SPOILING",
        target="c",
        compile=CompileSettings(workers=1, group_size=1, store=False),
        benchmark=BenchmarkSettings(n_final=0),
        on_event=events.append,
    )
    assert result.measured == 4 and not result.failures
    assert repeated_for_others(events) == [2]
