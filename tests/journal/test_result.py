"""The fold from events to a result: who wins, who is credited, and what is counted."""

from __future__ import annotations

import copy
import hashlib
import pickle
from pathlib import Path
from typing import Any

import msgspec
import pytest
from event_streams import Stream, timing, write

from atune.errors import AtuneError
from atune.journal.events import (
    ArtifactBuilt,
    BenchmarkFailed,
    BenchmarkStarted,
    CandidateLowered,
    CandidateMeasured,
    DeviceExcluded,
    RunFinished,
    RunResumed,
)
from atune.journal.reader import replay
from atune.journal.result import Result, TuneResult
from atune.model.artifact import Artifact, MachineFacts, StaticFacts
from atune.model.candidate import BASELINE
from atune.model.folders import artifacts_folder, cache_folder
from atune.reporting.report import report
from atune.reporting.summary import summary


def folded(stream: Stream) -> Result:
    return Result.from_events(stream.events)


def test_the_seconds_of_both_stages_are_summed_and_counted_once() -> None:
    """Two workers lower and build at once, two devices measure; a killed part's last benchmark has no end."""
    stream = Stream(total=6, step_s=0.0)

    def at(mono: float, kind: type[Any], /, **fields: Any) -> None:
        stream.mono = mono
        stream.add(kind, **fields)

    for mono, index in ((1.0, 0), (1.5, 1)):  # half a second of the second one is beside the first
        at(mono, CandidateLowered, index=index, code_key=f"c{index}", facts=StaticFacts(threads=1), seconds=1.0)
    at(4.0, ArtifactBuilt, indices=(0, 1), file="a.so", seconds=1.0)
    at(4.0, ArtifactBuilt, indices=(2,), file="b.so", seconds=3.5)  # it spans all of the above but a second
    at(4.1, BenchmarkStarted, index=0, device="0")
    at(4.2, BenchmarkStarted, index=1, device="1")
    at(4.5, BenchmarkFailed, index=1, device="1", kind="fault", message="trap")
    at(4.6, CandidateMeasured, index=0, device="0", timing=timing(1.0), checked=True)
    at(5.0, BenchmarkStarted, index=2, device="0")
    at(5.0, RunResumed, part=1, versions={})
    at(6.0, ArtifactBuilt, indices=(2,), file="b.so", seconds=3.5, reason="compiled before")
    at(6.0, BenchmarkStarted, index=2, device="0")
    at(7.0, CandidateMeasured, index=2, device="0", timing=timing(1.0), checked=True)
    at(7.0, RunFinished, wall_s=2.0, reason="exhausted")
    assert summary(folded(stream))["stages"] == {
        "compile_s": 6.5, "compile_wall_s": 4.0, "benchmark_s": 1.8, "benchmark_wall_s": 1.5,
    }  # fmt: skip


def test_an_alias_known_after_the_build_keeps_what_is_known_of_the_code() -> None:
    facts = MachineFacts(registers=40)
    for same_as in (1, BASELINE):
        stream = Stream(total=2).proposed(same_as)
        stream.add(ArtifactBuilt, indices=(same_as,), file="group.so", seconds=0.5, machine=(facts,))
        records = folded(stream.measured(same_as, 1.0).proposed(0).aliased(0, same_as).finished()).all_records
        assert [record.machine for record in records] == [facts, facts]


def test_a_final_that_leaves_only_a_baseline_that_may_not_win_has_no_winner() -> None:
    stream = Stream(total=1, default=BASELINE).candidate(0, 2.0).proposed(BASELINE).built(BASELINE)
    stream.add(CandidateMeasured, index=BASELINE, device="cpu", timing=timing(1.0), checked=False)
    result = folded(stream.final({0: [2.0], BASELINE: [1.0]}).failed(0).finished())
    assert result.best_index is None and result.latency_ms is None and not isinstance(result, TuneResult)


def test_ties_go_to_the_smaller_config_key() -> None:
    stream = Stream(total=3)
    for index in (0, 1, 2):
        stream.candidate(index, 1.0)
    result = folded(stream.finished())
    assert result.best is not None
    assert result.best.key == min(r.key for r in result.records)
    assert folded(Stream(total=3).candidate(2, 1.0).candidate(1, 1.0).candidate(0, 1.0)).best_index == result.best_index


def test_the_final_is_credited_to_the_first_of_its_class_and_finds_an_aliased_default() -> None:
    stream = Stream(total=4, default=3).candidate(2, 1.0).candidate(3, 4.0)
    stream.proposed(0).aliased(0, 2).proposed(1).aliased(1, 3)
    result = folded(stream.final({2: [1.0, 1.0], 3: [4.0, 4.0]}).finished())
    assert result.best_index == 0 and [e.index for e in result.final] == [0, 1]
    assert result.default is not None and result.default.same_as == 1
    assert result.speedup_over_default == (4.0, 4.0, 4.0)


def test_wall_time_sums_the_parts_also_of_a_part_that_was_killed() -> None:
    stream = Stream(total=3, step_s=1.0).candidate(0, 1.0)  # killed after its last event, at second 4
    stream.resumed().candidate(1, 2.0).interrupted(10.0).resumed().candidate(2, 3.0).finished(20.0)
    assert folded(stream).wall_s == pytest.approx(4 + 10 + 20)


def artifact(path: object) -> Artifact:
    return Artifact(0, str(path), "k0", (), "c")


def test_the_kernel_of_a_run_whose_library_is_gone_says_so(tmp_path: object) -> None:
    result = folded(Stream(total=1).candidate(0, 1.0).finished(kernel=artifact("/nowhere/k.so")))
    with pytest.raises(AtuneError, match=r"/nowhere/k\.so is gone"):
        result.kernel  # noqa: B018
    with pytest.raises(AtuneError, match="did not finish"):
        folded(Stream(total=1).candidate(0, 1.0)).kernel  # noqa: B018
    with pytest.raises(AtuneError, match="no candidate worked"):
        folded(Stream(total=1).candidate(0).finished()).kernel  # noqa: B018


def test_a_replayed_result_loads_only_what_was_kept_under_its_hash(tmp_path: Path) -> None:
    """Not another file of the cache, not a link out of the store, not changed content, and no path in a symbol."""
    store = artifacts_folder()
    store.mkdir(parents=True, exist_ok=True)
    data = b"a library"
    name = f"{hashlib.sha256(data).hexdigest()}.so"
    (tmp_path / name).write_bytes(data)
    changed, outside, link = store / ("0" * 64 + ".so"), cache_folder() / name, store / ("1" * 64 + ".so")
    changed.write_bytes(data)
    outside.write_bytes(data)
    link.symlink_to(tmp_path / name)
    good = store / name
    good.write_bytes(data)
    for path in (changed, outside, link, cache_folder() / ".." / "evil.so"):
        with pytest.raises(AtuneError, match="outside the cache folder" if path.name == "evil.so" else "not loaded"):
            _ = replayed(artifact(path)).kernel
    with pytest.raises(AtuneError, match="not loaded"):
        _ = replayed(msgspec.structs.replace(artifact(good), symbol="x/../../secret")).kernel_source
    with pytest.raises(AtuneError, match="source was not kept"):  # this one is taken, as far as it goes
        _ = replayed(artifact(good)).kernel_source
    for path in (changed, outside, link, good):
        path.unlink()


def replayed(kernel: Artifact) -> Result:
    events = Stream(total=1).candidate(0, 1.0).finished(kernel=kernel).events
    return Result.from_events(events, replayed=True)


def steps(stream: Stream) -> list[tuple[int, int, float]]:
    """Return (index, tried, latency) of each improvement."""
    return [(s.index, s.tried, s.latency_ms) for s in folded(stream).best_over_time]


def test_what_failed_later_is_no_step_and_the_best_without_it_is() -> None:
    """Candidate 1 was the best until the final found it wrong: steps follow what is known now."""
    stream = Stream(total=3).candidate(0, 3.0).candidate(1, 1.0).candidate(2, 2.0)
    assert steps(stream) == [(0, 1, 3.0), (1, 2, 1.0)]
    assert steps(stream.failed(1)) == [(0, 1, 3.0), (2, 3, 2.0)]


def test_figures_of_a_device_that_is_left_out_are_no_steps() -> None:
    stream = Stream(total=3).candidate(0, 3.0).candidate(1, 1.0)
    stream.add(DeviceExcluded, device="cpu", reason="slow")
    assert steps(stream) == []
    assert steps(stream.measured(1, 1.5)) == [(1, 1, 1.5)]


def test_a_step_is_credited_to_the_first_with_its_code() -> None:
    stream = Stream(total=6).candidate(5, 1.0).proposed(3).lowered(3, "c5").aliased(3, 5)
    assert steps(stream) == [(3, 1, 1.0)]


def test_a_result_with_a_winner_is_a_tune_result_and_another_is_none() -> None:
    stream = Stream(total=2).proposed(0)
    nothing = folded(stream)
    assert type(nothing) is Result and (nothing.best, nothing.best_config, nothing.latency_ms) == (None, None, None)
    found = folded(stream.candidate(1, 2.0, block=64))
    assert isinstance(found, TuneResult) and isinstance(copy.copy(found), TuneResult)
    assert (found.best.index, found.best_config, found.latency_ms) == (1, {"block": 64}, 2.0)
    assert isinstance(pickle.loads(pickle.dumps(found)), TuneResult)


def test_a_result_writes_its_report(tmp_path: Path) -> None:
    path = write(tmp_path / "j", Stream(total=2).candidate(0, 2.0).candidate(1, 1.0).finished().events)
    result = replay(path)
    result.report(str(tmp_path / "x.html"))
    assert (tmp_path / "x.html").read_text() == report(path)
    with pytest.raises(AtuneError, match=r"the run kept no journal; pass journal="):
        folded(Stream(total=1).candidate(0, 1.0).finished()).report(tmp_path / "x")
    assert not (tmp_path / "x").exists()
