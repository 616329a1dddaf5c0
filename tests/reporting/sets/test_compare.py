"""The comparison of two sets of journals: ratios with their intervals, what changed, what is too slow."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from event_streams import timing, write
from synthetic import run_of, stream_of

from atune.errors import UsageError
from atune.frontends.sets.set_result import SetResult
from atune.journal.events import CandidateLowered, DeviceReady, RunFinished
from atune.journal.result import Result
from atune.journal.set_folder import TunedProblem
from atune.model.artifact import Artifact, StaticFacts
from atune.model.device import DeviceInfo, Target
from atune.model.layouts import Layouts, LoopFacts
from atune.model.problem import Problem
from atune.sets import Comparison, compare

EVEN = [0.99, 0.995, 1.0, 1.005, 1.01] * 6
"""Samples of a quiet machine, ms."""


def scaled(factor: float) -> list[float]:
    return [factor * sample for sample in EVEN]


def tuned(problem: dict[str, Any], winner: int, factor: float = 1.0, **more: Any) -> Result:
    """Return a run that block=`winner` wins in `factor` ms."""
    return run_of(problem, {winner: (1.0,), 9: (5.0,)}, {winner: scaled(factor), 9: scaled(5)}, **more)


def lines(found: Comparison) -> list[str]:
    return str(found).splitlines()


def test_a_ratio_spans_the_intervals_of_both_medians() -> None:
    """By hand: of 30 samples the 97.5 % interval of the median ends at the 9th and at the 22nd, 0.995 and 1.005."""
    [one] = compare(tuned({"M": 1}, 1), tuned({"M": 1}, 1, 1.5)).problems
    assert one.ratio == pytest.approx((1.5 * 0.995 / 1.005, 1.5, 1.5 * 1.005 / 0.995))
    assert (one.before.latency_ms, one.after.latency_ms) == (pytest.approx(1.0), pytest.approx(1.5))


def test_runs_that_did_not_finish_make_it_doubtful() -> None:
    half = Result.from_events(stream_of({"M": 1}, {1: (1.0,), 9: (5.0,)}).events[:-1])
    whole = tuned({"M": 1}, 1)
    assert compare([whole], [half]).notes[0] == "toy M=1 did not finish after"
    assert compare([half], [whole]).notes[0] == "toy M=1 did not finish before"


def test_an_interval_holds_the_true_ratio() -> None:
    """Of 400 pairs of runs of one kernel, whose samples have a long tail, at least 95 % hold 1."""
    draw = random.Random(1)
    held = 0
    for _ in range(400):
        one, other = ([1 + draw.expovariate(20) for _ in range(20)] for _ in range(2))
        [pair] = compare(run_of({}, {0: one}), run_of({}, {0: other})).problems
        assert pair.ratio is not None
        held += pair.ratio[0] <= 1 <= pair.ratio[2]
    assert held / 400 >= 0.95


@pytest.mark.parametrize(
    ("factor", "fail_over", "slower"),
    [(1.05, 0.02, True), (1.05, 0.045, False), (1.029, 0.02, False), (1.031, 0.02, True), (0.5, 0.0, False)],
)
def test_it_is_slower_where_the_whole_interval_is_above_the_limit(
    factor: float, fail_over: float, slower: bool
) -> None:
    """The interval reaches 1 % to either side."""
    found = compare(tuned({"M": 1}, 1), tuned({"M": 1}, 1, factor), fail_over=fail_over)
    assert [one.slower for one in found.problems] == [slower] and len(found.slower) == slower


def test_problems_are_matched_by_kernel_and_arguments(tmp_path: Path) -> None:
    """Also where one is from a file, in which tuples are lists; of two runs of a problem the later counts."""
    for name, factor in (("first", 9.0), ("second", 1.0)):
        stream = stream_of({"shape": (8, 2)}, {1: scaled(factor)})
        stream.events = [msgspec.structs.replace(e, time=e.time + (name == "second")) for e in stream.events]
        write(tmp_path / f"{'b' if name == 'first' else 'a'}.jsonl", stream.events)
    (tmp_path / "begun.jsonl").touch()
    after = [tuned({"shape": (8, 2)}, 1, 1.1), tuned({"shape": (8, 3)}, 1), tuned({"shape": (8, 2)}, 2, workload="b")]
    found = compare(tmp_path, after)
    [one] = found.problems
    assert one.ratio is not None and one.ratio[1] == pytest.approx(1.1)
    assert one.before.journal == str(tmp_path / "a.jsonl")
    assert (found.only_before, found.only_after) == ((), ("toy shape=(8, 3)", "b shape=(8, 2)"))
    assert lines(found)[3] == "only after: toy shape=(8, 3); b shape=(8, 2)"
    assert lines(compare(tmp_path, after[:2]))[3] == "only after: shape=(8, 3)", "there is one kernel alone"


def test_what_changed_is_said(tmp_path: Path) -> None:
    before = [
        tuned({"M": 1}, 1, versions={"tilelang": "0.1.14", "torch": "2.11"}, kernel="a" * 64),
        tuned({"M": 2}, 1, versions={"tilelang": "0.1.14", "torch": "2.11"}),
    ]
    after = [
        tuned({"M": 1}, 2, 1.2, versions={"tilelang": "0.1.15", "torch": "2.11"}, kernel="b" * 64),
        tuned({"M": 2}, 1, versions={"tilelang": "0.1.15", "torch": "2.11"}),
    ]
    found = compare(before, after)
    assert [(one.name, one.before, one.after) for one in found.problems[0].config] == [("block", 1, 2)]
    assert [one.code for one in found.problems] == [True, False]
    text = lines(found)
    assert text[0] == "slower     1 of 2 problems by more than 2 %"
    assert text[1] == f"changed    kernel source {'a' * 12} → {'b' * 12} (on 1 of 2)"
    assert text[2] == "           tilelang 0.1.14 → 0.1.15" and "torch" not in str(found)
    assert text[3] == "           the code of 1 of 2 winners"
    assert text[5].split() == ["problem", "before", "ms", "after", "ms", "ratio", "95", "%", "interval", "winner"]
    assert text[6].split() == ["M=1", "1", "1.2", "1.200", "1.188–1.212", "slower", "block", "1", "→", "2"]
    assert text[7].split() == ["M=2", "1", "1", "1.000", "0.990–1.010", "same"]


def test_other_code_of_the_same_values_is_said() -> None:
    stream = stream_of({"M": 1}, {1: scaled(0.8)})
    stream.events = [
        msgspec.structs.replace(e, code_key="other") if isinstance(e, CandidateLowered) else e for e in stream.events
    ]
    found = compare(run_of({"M": 1}, {1: EVEN}), Result.from_events(stream.events))
    assert lines(found)[-1].split()[-6:] == ["0.792–0.808", "faster", "same", "values,", "other", "code"]


def built(problem: dict[str, Any], version: str, source_key: str, layouts: Layouts | None = None) -> Result:
    """Return a run of a version of tilelang. Its code key, which covers the version, is never another's."""
    stream = stream_of(problem, {1: EVEN}, versions={"tilelang": version})
    kernel = Artifact(1, "gone.so", "main", (), "c", source_key=source_key)
    stream.events = [
        msgspec.structs.replace(e, code_key=version, facts=StaticFacts(layouts=layouts))
        if isinstance(e, CandidateLowered)
        else msgspec.structs.replace(e, kernel=kernel)
        if isinstance(e, RunFinished)
        else e
        for e in stream.events
    ]
    return Result.from_events(stream.events)


def test_two_versions_of_a_compiler_may_generate_the_same_code() -> None:
    narrow, wide = (Layouts(loops=(LoopFacts((8, 8), 1, width=width),)) for width in (1, 4))
    before = [built({"M": m}, "0.1.14", "a", narrow) for m in (1, 2, 3)]
    after = [built({"M": 1}, "0.1.15", "a", narrow), built({"M": 2}, "0.1.15", "b", narrow)]
    found = compare(before, [*after, built({"M": 3}, "0.1.15", "b", wide)])
    assert [(one.code, one.layouts) for one in found.problems] == [(False, False), (True, False), (True, True)]
    text = lines(found)
    assert text[1:3] == ["changed    tilelang 0.1.14 → 0.1.15", "           the code of 2 of 3 winners"]
    assert [line.split("  ")[-1] for line in text[-3:]] == [
        "same", "same values, other code", "same values, other code and layouts",
    ]  # fmt: skip


def on_gpu(name: str, problem: dict[str, Any]) -> Result:
    stream = stream_of(problem, {1: EVEN}, target=Target("cuda", "sm_90a"))
    info = DeviceInfo("cpu", name)
    stream.events = [
        msgspec.structs.replace(e, device=info) if isinstance(e, DeviceReady) else e for e in stream.events
    ]
    return Result.from_events(stream.events)


def test_different_gpus_settings_and_a_moved_reference_are_doubtful() -> None:
    found = compare([on_gpu("H100", {"M": m}) for m in (1, 2)], [on_gpu("H200", {"M": m}) for m in (1, 2)])
    assert found.notes == ("different GPUs: H100 before, H200 after",)
    assert lines(found)[1:3] == ["changed    GPU H100 → H200", "doubtful   different GPUs: H100 before, H200 after"]

    def run(n_repeat: int, factor: float) -> Result:
        settings = {"benchmark": {"n_repeat": n_repeat, "check": True}}
        return run_of({}, {1: EVEN, 2: EVEN}, {1: EVEN}, scaled(factor), settings=settings)

    settings, moved = compare(run(20, 1.0), run(40, 1.1)).notes
    assert settings == "measured otherwise: n_repeat was 20 and is 40"
    assert moved.startswith("the reference's latency moved by more than 2 % on 1 of 1 problems, to 1.1 times")


def test_a_first_timing_and_a_final_are_told_apart() -> None:
    first, final = run_of({}, {1: EVEN, 2: EVEN}), run_of({}, {1: EVEN, 2: EVEN}, {1: EVEN})
    note = "measured otherwise: latency was by first timing and is by the final"
    assert compare(first, final).notes == (note,) and compare(first, first).notes == ()


def test_results_of_sets_are_compared(tmp_path: Path) -> None:
    """A problem without a result is in neither set."""
    before, after = (
        SetResult(
            [TunedProblem(Problem({"M": m}), tuned({"M": m}, 1, factor) if m < 3 else None, "no") for m in (1, 2, 3)],
            tmp_path,
        )
        for factor in (1.0, 1.2)
    )
    found = compare(before, after)
    assert [one.problem for one in found.problems] == [{"M": 1}, {"M": 2}] and len(found.slower) == 2
    assert (found.only_before, found.only_after) == ((), ())


def test_nothing_in_common_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="different kernels, so there is nothing to compare: toy and other"):
        compare(tuned({"M": 1}, 1), tuned({"M": 1}, 1, workload="other"))
    with pytest.raises(UsageError, match="no problem is in both: toy M=1 and 1 more before, toy M=3 after"):
        compare([tuned({"M": m}, 1) for m in (1, 2)], tuned({"M": 3}, 1))
    with pytest.raises(UsageError, match="fail_over must be zero or more"):
        compare(tuned({"M": 1}, 1), tuned({"M": 1}, 1), fail_over=-0.1)


def test_a_winner_that_is_gone_is_slower_and_a_new_one_is_not() -> None:
    none = run_of({"M": 1}, {1: ()})
    lost, new = compare(tuned({"M": 1}, 1), none), compare(none, tuned({"M": 1}, 1))
    assert len(lost.slower) == 1 and lost.slower[0].ratio is None and not new.slower
    assert lines(lost)[-1].split() == ["M=1", "1", "none", "slower"]
    assert lines(new)[-1].split() == ["M=1", "none", "1", "block=1"]


@pytest.mark.parametrize("samples", [[], [0.0, 0.0]])
def test_a_journal_that_no_run_wrote_has_no_ratio(samples: Sequence[float]) -> None:
    stream = stream_of({"M": 1}, {1: EVEN})
    odd = msgspec.structs.replace(timing(1.0), samples_us=tuple(samples))
    stream.events = [
        msgspec.structs.replace(e, timing=odd) if type(e).__name__ == "CandidateMeasured" else e for e in stream.events
    ]
    [one] = compare(Result.from_events(stream.events), tuned({"M": 1}, 1)).problems
    assert one.ratio is None and not one.slower
