"""A result's first lines: how the winner compares, what ties with it, and which timings a table ranks."""

from __future__ import annotations

from pathlib import Path

import pytest
from event_streams import Stream, write

from atune.journal.result import Result
from atune.model.roofline import Roofline
from atune.reporting import summary as headline
from atune.reporting.export import table
from atune.reporting.notebook import result_html
from atune.reporting.report import report
from atune.reporting.summary import (
    comparison,
    default_line,
    headline_lines,
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
        (Stream().proposed(0).build_failed(0).interrupted(), "no candidate has been measured"),
        (Stream().proposed(0).lowered(0), "no candidate has been measured"),
        (Stream().finished(), "no candidate was tried"),
    ],
    ids=["all failed", "interrupted", "under way", "nothing tried"],
)
def test_a_run_without_a_winner_reads_alike_everywhere(stream: Stream, text: str, tmp_path: Path) -> None:
    result = folded(stream)
    assert f"no winner: {text}" in summary_text(result).splitlines()
    assert f"</b>: {text}</div>" in result_html(result)
    assert f"<p>{text.capitalize()}.</p>" in report(write(tmp_path / "run.jsonl", stream.events))


def test_the_first_line_compares_with_the_reference_and_the_second_with_the_default() -> None:
    third, first, second = headline_lines(final_of(2.5, default=2))
    assert first == "latency    1 ms, 2.50 times faster than the reference (2.5 ms)"
    assert second == "           4.00 times faster than the default configuration (95 % interval 4.00–4.00)"
    assert third == "winner     block=0"


def test_a_winner_slower_than_the_reference_is_called_slower() -> None:
    result = final_of(0.4)
    assert latency_line(result) == "1 ms, 2.50 times slower than the reference (0.4 ms)"
    assert summary(result)["reference_ratio"] == 0.4


def test_latencies_that_seem_to_contradict_the_ratio_are_explained() -> None:
    """The reference was in the final's first rounds alone, and the machine became twice as fast after them."""
    stream = Stream(total=1).ready(4.0).candidate(0, 5.0)
    moved = folded(stream.final({0: [5.0] * 9 + [2.0] * 20}, [4.0] * 9).finished())
    assert latency_line(moved) == (
        "2 ms, 1.25 times slower than the reference (4 ms, and the winner 5 ms in the same rounds)"
    )
    assert "same rounds" not in latency_line(final_of(2.5))


@pytest.mark.parametrize(
    ("later_ms", "text"),
    [
        (0.995, "0.995 ms, 1.01 times slower than the reference (0.99 ms)"),
        (0.985, "0.985 ms, 1.01 times slower than the reference (0.99 ms, and the winner 1 ms in the same rounds)"),
        (0.9, "0.9 ms, 1.01 times slower than the reference (0.99 ms, and the winner 1 ms in the same rounds)"),
    ],
)
def test_a_line_whose_figures_contradict_gives_the_reason(later_ms: float, text: str) -> None:
    stream = Stream(total=1).ready(0.99).candidate(0, 1.0)
    assert latency_line(folded(stream.final({0: [1.0] * 9 + [later_ms] * 20}, [0.99] * 9).finished())) == text


def test_a_winner_that_the_noise_hides_is_not_called_faster() -> None:
    assert comparison((0.99, 1.02, 1.05), "the reference") == "statistically tied with the reference"
    assert comparison((0.999, 1.001, 1.003), "the reference") == "as fast as the reference"
    assert comparison((1.01, 1.02, 1.03), "the reference") == "1.02 times faster than the reference"


def test_without_a_final_the_line_names_the_first_timing() -> None:
    result = folded(Stream(total=1).ready(2.0).candidate(0, 1.0).finished())
    assert latency_line(result) == "1 ms by first timing, 2.00 times faster than the reference (2 ms)"
    assert result.reference_ratio == 2.0 and result.ties is None


def test_without_a_reference_the_line_has_the_latency_alone() -> None:
    result = folded(Stream(total=1).ready().candidate(0, 1.0).finished())
    assert latency_line(result) == "1 ms by first timing" and result.reference_ratio is None


@pytest.mark.parametrize(
    ("roofline", "text"),
    [
        (None, "1 ms"),
        (
            Roofline(gflops_s=757_000, gbytes_s=500, compute_share=0.765, bound="compute", peaks="nominal"),
            "1 ms; 757 TFLOP/s, 76 % of the nominal peak",
        ),
        (
            Roofline(gflops_s=757, gbytes_s=500, compute_share=0.1, memory_share=0.5, bound="memory", peaks="nominal"),
            "1 ms; 500 GB/s, 50 % of the nominal peak",
        ),
        (Roofline(gbytes_s=5000), "1 ms; 5 TB/s"),
    ],
)  # fmt: skip
def test_the_rate_of_what_limits_the_problem_is_shown(
    roofline: Roofline | None, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = final_of(2.5)
    monkeypatch.setattr(Result, "roofline", roofline)
    monkeypatch.setattr(Result, "reference_ms", None)
    assert headline.latency_line(result) == text


def test_ties_are_named_with_the_rule_that_chose() -> None:
    by_default = final_of(2.5, default=0, ties=(1,))
    assert (
        ties_line(by_default)
        == "candidate 1 is statistically tied with the winner; the default is preferred among equals"
    )
    by_key = final_of(2.5, default=2, ties=(1, 2))
    assert ties_line(by_key) == ("candidates 1 and 2 are statistically tied with the winner")
    assert "\nties       candidates 1 and 2 are statistically tied" in summary_text(by_key)
    assert summary(by_key)["ties"] == (1, 2)
    assert "ties " not in summary_text(final_of(2.5, ties=()))


def test_many_ties_are_counted() -> None:
    stream = Stream(total=9)
    for index in range(9):
        stream.candidate(index, 1.0)
    result = folded(stream.final({i: [1.0] for i in range(9)}, ties=tuple(range(1, 9))).finished())
    assert ties_line(result).startswith("candidates 1, 2, 3, 4, 5 and 3 more are statistically tied")


def test_ties_of_a_winner_that_failed_since_are_left_out() -> None:
    stream = Stream(total=3)
    for index in range(3):
        stream.candidate(index, 1.0)
    stream.final({0: [1.0], 1: [1.0], 2: [1.0]}, ties=(1,)).failed(0)
    assert folded(stream).best_index == 1 and folded(stream).ties is None


@pytest.mark.parametrize(
    ("stream", "text"),
    [
        (Stream(default=0).candidate(0, 1.0).candidate(1, 2.0), "the default configuration wins"),
        (
            Stream(default=1).candidate(0, 1.0).proposed(1).aliased(1, 0),
            "the default configuration has the same code as the winner",
        ),
        (Stream(default=1).candidate(0, 1.0).candidate(1), "the default configuration failed"),
        (Stream(default=1).candidate(0, 1.0).proposed(1).pruned(1), "the default configuration was pruned"),
        (Stream(default=1).candidate(0, 1.0).candidate(1, 2.0), ""),
        (Stream().candidate(0, 1.0), ""),
    ],
)
def test_a_default_that_is_not_slower_is_mentioned(stream: Stream, text: str) -> None:
    assert default_line(folded(stream)) == text


def test_the_table_marks_winner_tie_default_and_failed_and_ranks_timings_of_one_kind() -> None:
    stream = Stream(total=5, default=2)
    for index, first_ms in enumerate((1.1, 1.2, 1.3, 2.0)):
        stream.candidate(index, first_ms)
    result = folded(stream.candidate(4).final({0: [1.0], 1: [1.001], 2: [3.0]}, ties=(1,)).finished())
    rows = [line.split() for line in table(result).splitlines()[1:]]
    assert [(row[2], " ".join(row[4:])) for row in rows] == [
        ("0", "winner, final timing"),
        ("1", "tie, final timing"),
        ("2", "default, final timing"),
        ("3", "first timing"),
        ("4", "failed: mismatch: wrong"),
    ]
