"""A result's first lines: how the winner compares, what ties with it, and which timings a table ranks."""

from __future__ import annotations

from pathlib import Path

import pytest
from event_streams import Stream, write

from atune.journal.events import BuildFailed
from atune.journal.result import Result
from atune.model.candidate import BASELINE
from atune.reporting.export import table
from atune.reporting.report import report
from atune.reporting.summary import (
    default_line,
    failure_groups,
    first_failure_lines,
    latency_line,
    summary,
    summary_text,
    ties_line,
)


def folded(stream: Stream) -> Result:
    return Result.from_events(stream.events)


def final_of(reference_ms: float, *, default: int = 0, ties: tuple[int, ...] | None = ()) -> Result:
    """Return a run of three whose final took 1, 1.002 and 4 ms, by index."""
    stream = Stream(total=3, default=default).ready(reference_ms)
    for index, first_ms in enumerate((1.1, 1.1, 0.9)):
        stream.candidate(index, first_ms)
    entries = {0: [1.0] * 9, 1: [1.002] * 9, 2: [4.0] * 9}
    return folded(stream.final(entries, [reference_ms] * 9, ties).finished())


@pytest.mark.parametrize(
    ("stream", "text"),
    [
        (Stream().proposed(0).build_failed(0).finished(), "no candidate worked"),
        (Stream().proposed(0).lowered(0), "no candidate has been measured"),
        (Stream().finished(), "no candidate was tried"),
    ],
    ids=["all failed", "under way", "nothing tried"],
)
def test_a_run_without_a_winner_reads_alike_everywhere(stream: Stream, text: str, tmp_path: Path) -> None:
    result = folded(stream)
    assert f"no winner: {text}" in summary_text(result).splitlines()
    assert text in result._repr_html_()
    assert f'"notes":["{text.capitalize()}."]' in report(write(tmp_path / "run.jsonl", stream.events))


def test_ratios_are_those_of_the_latencies_next_to_them() -> None:
    """Rounds scatter, so that the median of their ratios is another figure; its interval is kept."""
    stream = Stream(total=2, default=1).ready(3.0).candidate(0, 1.0).candidate(1, 2.0)
    ours, theirs = [1.0, 1.0, 1.0, 2.0, 2.0], [2.0, 2.0, 6.0, 6.0, 6.0]
    result = folded(stream.final({0: ours, 1: theirs}, theirs).finished())
    assert (result.latency_ms, result.reference_ms, result.default_ms) == (1.0, 6.0, 6.0)
    assert result.reference_ratio == result.default_ratio == 6.0
    assert result.speedup_over_default == result.speedup_over_reference == (2.0, 6.0, 6.0)
    assert latency_line(result) == "1 ms, 6.00 times faster than the reference (6 ms)"
    assert default_line(result).startswith("6.00 times faster than the default configuration (6 ms,")


ONE = Stream(total=1).ready(2.0).candidate(0, 1.0)
MOVED = Stream(total=1).ready(4.0).candidate(0, 5.0).final({0: [5.0] * 9 + [2.0] * 20}, [4.0] * 9)
"""The reference was in the final's first rounds alone, and the machine moved after them."""


@pytest.mark.parametrize(
    ("result", "text", "ratio"),
    [
        (final_of(0.4), "1 ms, 2.50 times slower than the reference (0.4 ms)", 0.4),
        (folded(MOVED), "2 ms, statistically tied with the reference (4 ms)", 2.0),
        (folded(ONE), "1 ms by first timing, 2.00 times faster than the reference (2 ms)", 2.0),
        (folded(Stream(total=1).ready().candidate(0, 1.0)), "1 ms by first timing", None),
    ],
    ids=["slower", "tied", "without a final", "without a reference"],
)
def test_how_the_winner_compares_with_the_reference_is_said(result: Result, text: str, ratio: float | None) -> None:
    assert (latency_line(result), result.reference_ratio) == (text, ratio)


def test_ties_are_named_with_the_rule_that_chose() -> None:
    by_default = final_of(2.5, default=0, ties=(1,))
    same = "statistically indistinguishable from the winner"
    assert ties_line(by_default) == f"candidate 1 is {same}, so the default is kept"
    by_key = final_of(2.5, default=2, ties=(1, 2))
    assert ties_line(by_key) == f"candidates 1 and 2 are {same}"
    assert f"\nties       candidates 1 and 2 are {same}" in summary_text(by_key)
    assert summary(by_key)["ties"] == (1, 2) and table(by_key).count("  tie, ") == 2
    assert "ties " not in summary_text(final_of(2.5, ties=()))


def test_ties_of_a_winner_that_failed_since_are_left_out() -> None:
    stream = Stream(total=3)
    for index in range(3):
        stream.candidate(index, 1.0)
    stream.final({0: [1.0], 1: [1.0], 2: [1.0]}, ties=(1,)).failed(0)
    assert folded(stream).best_index == 1 and folded(stream).ties is None


@pytest.mark.parametrize(
    ("stream", "text"),
    [
        (
            Stream(default=BASELINE).candidate(BASELINE, 3.0).candidate(0, 2.0),
            "1.50 times faster than the default configuration, which is not part of the space (3 ms)",
        ),
        (Stream(default=1).candidate(0, 1.0).candidate(1), "the default configuration gave wrong outputs: wrong"),
        (
            Stream(default=1).candidate(0, 1.0).proposed(1).pruned(1),
            "the default configuration was not measured: too much shared memory",
        ),
        (
            Stream(default=1).candidate(0, 1.0).candidate(1, 2.0),
            "2.00 times faster than the default configuration (2 ms)",
        ),
        (
            Stream(total=2, default=1).candidate(0, 1.0).candidate(1, 1.0).final({0: [1.0], 1: [1.0008]}),
            "as fast as the default configuration, with a ratio of 1.0008 (1.001 ms, 95 % interval 1.0008–1.0008)",
        ),
        (Stream(default=1).candidate(0, 1.0).proposed(1), ""),
        (Stream().candidate(0, 1.0), ""),
        (
            Stream(total=3, default=0).candidate(0, 1.0),
            "this is the default configuration; no other configuration was measured",
        ),
        (
            Stream(no_default="block has no default value").candidate(0, 1.0),
            "there is no default configuration to compare with: block has no default value",
        ),
    ],
)
def test_how_the_winner_compares_with_the_default_is_said_or_why_it_does_not(stream: Stream, text: str) -> None:
    assert default_line(folded(stream)) == text


def test_candidates_whose_messages_differ_in_numbers_alone_are_one_group() -> None:
    stream = Stream(total=5).ready()
    for index, said in enumerate(["12 of 64 differ: 1e-05", "3 of 64 differ: 0.5", "no f1", "no f2"]):
        stream.proposed(index).failed(index, said)
    groups = failure_groups(folded(stream.finished()).records)
    assert [group.line for group in groups] == [
        "2 gave wrong outputs, for example: 12 of 64 differ: 1e-05",
        "1 gave wrong outputs: no f1",
        "1 gave wrong outputs: no f2",
    ]


def test_of_many_reasons_the_first_are_shown_and_the_rest_is_counted() -> None:
    stream = Stream(total=11)
    for index in range(11):
        stream.proposed(index).build_failed(index, f"reason {'abcdefghijk'[index]}")
    lines = summary_text(folded(stream.finished())).splitlines()
    first = lines.index("failures   1 failed to compile: reason a")
    assert "for example" in lines[first + 1] and lines[-1].strip() == "3 more, for 3 other reasons"


def test_no_stack_of_atunes_own_code_is_shown() -> None:
    detail = (
        "out of tape\nFatal Python error: Aborted\n\nCurrent thread 0x7f (most recent call first):\n"
        '  File "/src/atune/workers/server_main.py", line 87 in main\n\nExtension modules: numpy\n'
    )
    stream = Stream(total=2).proposed(0)
    stream.add(BuildFailed, worker="compile-0", index=0, kind="crash", message="killed by SIGABRT", detail=detail)
    result = folded(stream.finished())
    assert first_failure_lines(result, failure_groups(result.records))[1:] == ["  out of tape"]


def test_a_check_that_refuses_every_candidate_is_named() -> None:
    stream = Stream(total=2).ready()
    for index in range(2):
        stream.proposed(index).failed(index, "the check raised ZeroDivisionError: division by zero")
    result = folded(stream.finished())
    assert "the check refuses every candidate" in first_failure_lines(result, failure_groups(result.records))[0]
