"""`bench/start.py`: what its rows run, in which order, and what is read off a journal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import start
import start_programs as programs


def event(kind: str, time: float, seconds: float = 0.0) -> dict[str, Any]:
    return {"event": kind, "time": time, "seconds": seconds}


def test_the_start_ends_where_the_first_lowering_begins_and_the_winner_is_the_last_best() -> None:
    events = [
        event("run_started", 104.0), event("candidate_lowered", 105.5, 0.5), event("candidate_lowered", 105.6, 0.1),
        event("artifact_built", 108.0, 2.0), event("candidate_measured", 108.5, 0.25),
        event("best_changed", 108.5), event("best_changed", 109.0), event("candidate_measured", 110.0, 0.25),
    ]  # fmt: skip
    assert start.figures(events, 100.0) == {"start_s": 5.0, "own_s": 2.75, "winner_s": 9.0}


@pytest.mark.parametrize("target", ["c", "cuda"])
def test_every_program_is_one(target: str) -> None:
    texts = [
        programs.drop_in(target, 4), programs.drop_in(target, 1, programs.LATE), programs.compiled_only(target, 4),
        programs.workload_file(target, 20), programs.warmed(target, warm=True), programs.warmed(target, warm=False),
    ]  # fmt: skip
    for text in texts:
        compile(text, "program.py", "exec")
    assert "atune" not in texts[0] + texts[2], "tilelang's own program knows nothing of atune"


@pytest.mark.parametrize("target", ["c", "cuda"])
def test_the_edit_changes_the_kernels_body_alone(target: str) -> None:
    before, after = programs.workload_file(target, 20), programs.workload_file(target, 20, edited=True)
    changed = [one for one, two in zip(before.splitlines(), after.splitlines(), strict=True) if one != two]
    assert len(changed) >= 4 and all(programs.EDIT[target][0] in line for line in changed)
    assert "import tilelang\n" in after


def row(order: list[str], **options: Any) -> start.Row:
    def variant(name: str, seconds: float) -> start.Variant:
        def run(folder: start.Folder) -> dict[str, float]:
            order.append(name)
            return {"wall_s": seconds}

        return run

    return start.Row({"a": variant("a", 1.0), "b": variant("b", 4.0)}, "a / b", start.ratio("a", "b"), **options)


def test_variants_run_in_turn_and_begin_in_turn() -> None:
    order: list[str] = []
    found = start.run_row(row(order, beside={"b's": lambda pair: pair["b"]["wall_s"]}), 3)
    assert order == ["a", "b", "b", "a", "a", "b"]
    assert found["values"] == [0.25] * 3 and found["median_wall_s"] == {"a": 1.0, "b": 4.0}
    first, second = start.lines_of("row", found)
    assert first[2:4] == ["a / b", "0.25 (0.25 to 0.25)"] and second == ["", "", "b's", "4.00 (4.00 to 4.00)", ""]


def test_a_process_that_fails_ends_the_bench_with_what_it_said(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"exit status 1.*\n(.*\n)*ValueError: mine"):
        start.Folder(tmp_path).program("raise ValueError('mine')")
