"""The result cache: what its key covers, what its journals answer, and that it never costs the run."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
from cache_entries import events, key_of, put, run_of, with_configs
from decorated import QUICK, cached_work, doubled, run_cached, workload
from processes import environment, wait_until

import atune
from atune.errors import NoWinner, UsageError
from atune.frontends import cached_tune as cached
from atune.frontends.cached_tune import tune_work
from atune.frontends.warm_start import recaller
from atune.journal.events import (
    BenchmarkFailed,
    BenchmarkStarted,
    CandidateLowered,
    CandidateMeasured,
    CandidateProposed,
    Event,
    RunFinished,
    RunResumed,
    RunStarted,
)
from atune.journal.reader import found_in, read
from atune.journal.result import Result
from atune.journal.state import State
from atune.journal.writer import Journal
from atune.model.artifact import StaticFacts
from atune.model.candidate import Candidate, config_key
from atune.workers import result_cache
from atune.workers.result_cache import ResultCache
from atune.workers.result_key import ResultKey, read_exported, same_problem

CONFIGS = [{"block": 16}, {"block": 32}, {"block": 64}]


@pytest.fixture
def cache(tmp_path: Path) -> ResultCache:
    return ResultCache(tmp_path / "results")


def opened(cache: ResultCache, header: RunStarted, **options: Any) -> tuple[Journal, Sequence[Any]]:
    begun = cache.begin(header, **options)
    assert begun is not None and begun[0] is not None
    return begun[0], begun[1]


def own(cache: ResultCache) -> list[Path]:
    """Return the journals that lie in the cache's folder."""
    return [path for path in cache.journals.rglob("*.jsonl") if not path.is_symlink()]


def test_a_result_comes_back_with_every_record(cache: ResultCache) -> None:
    run = events(3.0, 1.0, None)
    assert run_of(cache, run) is None and not cache.folder.exists()  # looking makes nothing
    journal = put(cache, run)
    found = run_of(cache, run)
    assert found is not None and found.entry is not None and found.path == str(journal)
    assert (found.config, found.entry.latency_ms) == ({"block": 32}, 1.0)
    result = cache.result(found)
    assert result is not None and result.cache_hit and result.best_config == {"block": 32}
    assert [record.status for record in result.records] == ["measured", "measured", "failed"]
    assert run_of(cache, events(1.0, problem={"M": 128})) is None
    assert isinstance(run[0], RunStarted) and cache.begin(run[0]) is None  # it may have ended since it was looked up


def test_a_look_up_reads_no_records(cache: ResultCache, monkeypatch: pytest.MonkeyPatch) -> None:
    put(cache, events(3.0, 1.0))
    monkeypatch.setattr(result_cache, "_read", {})
    monkeypatch.delattr(result_cache, "read")
    monkeypatch.delattr(result_cache, "JournalReader")
    found = run_of(cache, events(3.0, 1.0))
    assert found is not None and found.found.latency_ms == 1.0 and len(cache.entries()) == 1


def test_of_runs_that_begin_at_once_one_has_the_work(cache: ResultCache) -> None:
    """The others see that it writes the journal, whose name begins with the key."""
    header = cast(RunStarted, events(1.0)[0])
    ready, begun = threading.Barrier(4), list[Any]()

    def begin() -> None:
        ready.wait()
        begun.append(cache.begin(header))

    for _ in range(25):
        threads = [threading.Thread(target=begin) for _ in range(4)]
        for action in (threading.Thread.start, threading.Thread.join):
            for thread in threads:
                action(thread)
        written = [one[0] for one in begun if one is not None]
        assert len(written) <= 1, "or none, where each saw another: they look again"
        if not written:
            written = [opened(cache, header)[0]]
        assert cache.begin(header) is None and own(cache) == [Path(written[0].path)]
        assert Path(written[0].path).name.startswith(key_of(events(1.0)).text)
        written[0].close()
        begun.clear()


FOR_PEOPLE = ("kernel", "source", "tuned_for")


@pytest.mark.parametrize("part", ResultKey.__struct_fields__)
def test_every_part_of_the_key_counts_that_no_other_implies(part: str) -> None:
    key = key_of(events(1.0))
    other = {"problem": {"M": 65}, "versions": {"atune": "2"}, "measuring": {"n_repeat": 4}, "search": {}}
    changed = msgspec.structs.replace(key, **{part: other.get(part, "another")})
    assert (changed.text == key.text) == (part in FOR_PEOPLE)
    assert (changed.work == key.work) == (part in (*FOR_PEOPLE, "search", "space"))


ENDED = RunFinished(seq=0, time=3.0, mono=10.0, wall_s=1.0, reason="")
RESUMED = RunResumed(seq=0, time=2.0, mono=9.0, part=1, versions={})


@pytest.mark.parametrize(
    ("budget", "more", "reason", "cache_use", "answers"),
    [
        ({}, [], "", "", False),
        ({}, [RESUMED], "stopped", "", False),
        ({}, [RESUMED], "budget", "", False),
        ({"candidates": 3}, [RESUMED], "budget", "", False),
        ({"candidates": 2}, [RESUMED], "budget", "", True),
        ({}, [msgspec.structs.replace(RESUMED, accepted=("kernel: edited",)), RESUMED], "exhausted", "", False),
        ({}, [RESUMED], "exhausted", "", True),
        ({}, [], "exhausted", "off", False),
    ],
)
def test_only_a_whole_run_of_what_its_header_asks_for_answers(
    cache: ResultCache, budget: dict[str, int], more: list[Event], reason: str, cache_use: str, answers: bool
) -> None:
    """The measurements of others are known, but for those that use no cache. The last line says what the fold does."""
    header, *others = events(3.0, 1.0, finished=False)
    assert isinstance(header, RunStarted)
    settings = {**header.settings, "budget": budget, **({"cache": cache_use} if cache_use else {})}
    run = [msgspec.structs.replace(header, total=9, settings=settings), *others, *more]
    told = found_in(State.of(run), reason)
    for found in (None, told):
        ends = [msgspec.structs.replace(ENDED, reason=reason, found=found)] if reason else []
        put(cache, [msgspec.structs.replace(event, seq=seq) for seq, event in enumerate([*run, *ends])])
        assert (run_of(cache, run) is not None) == answers and told.whole == (answers or cache_use == "off")
        assert len(cache.known(key_of(run).work, CONFIGS)) == (0 if cache_use == "off" else 2)
        cache.clear()


def test_known_outcomes_are_those_of_the_same_work_the_newest_of_each(cache: ResultCache) -> None:
    put(cache, events(1.0, at=9.0))
    put(cache, events(5.0, 2.0, None))
    known = cache.known(key_of(events(1.0, space="another")).work, CONFIGS)
    times = [one.timing.latency_ms for _, one in known.values() if isinstance(one, CandidateMeasured)]
    assert sorted(times) == [1.0, 2.0] and len(known) == 3
    assert cache.known(key_of(events(1.0, versions={"atune": "2"})).work, CONFIGS) == {}


@pytest.mark.parametrize("ends", [True, False])
def test_a_run_of_other_work_at_the_path_of_a_linked_journal_counts_by_its_own_key(
    cache: ResultCache, tmp_path: Path, ends: bool
) -> None:
    """In look-ups, in what is known and in what is cleared; and a journal has one link."""
    old, new = events(1.0, digests="d"), events(9.0, digests="d", finished=ends, models=("H100",))
    path, own_one = tmp_path / "mine.jsonl", put(cache, events(8.0, models=("H100",)))
    put(cache, old, path)
    [link] = [file for file in cache.journals.rglob("*.jsonl") if file.name.startswith(key_of(old).text)]
    path.unlink()
    put(cache, new, path)
    assert not link.is_symlink() and len(cache.runs()) == 2
    link.symlink_to(path)  # that of a run that was killed
    for key in (key_of(old).text, key_of(old).text[:12]):
        assert cache.answers(key=key) == [] == cache.answers(work=key_of(old).work)
    assert run_of(cache, old) is None and cache.known(key_of(old).work, CONFIGS) == {}
    elsewhere = put(cache, old, tmp_path / "other.jsonl")
    assert cache.clear(cache.answers(key=key_of(old).text)) == 1 and own_one.exists() and elsewhere.exists()
    assert sorted(found for found, _ in cache.runs()) == sorted([own_one, path])
    begun = cast(RunStarted, old[0])
    assert opened(cache, begun)[1] == []


def test_an_interrupted_run_of_other_work_is_neither_continued_nor_waited_for(cache: ResultCache) -> None:
    """Also where a name in the cache's own folder says that its work is the same."""
    old, new = events(1.0), events(9.0, finished=False, versions={"atune": "2"})
    path = put(cache, old, cache.journals / "mine.jsonl")
    path.unlink()
    with Journal.create(path) as journal:
        for event in new:
            journal.append(event)
        begun, past = opened(cache, cast(RunStarted, old[0]))
        assert begun.path != str(path) and past == []
    begun.close()
    begun, past = opened(cache, cast(RunStarted, old[0]))
    begun.close()
    assert begun.path != str(path) and past == []


def test_runs_that_recorded_nothing_take_no_place_of_known_ones(cache: ResultCache) -> None:
    put(cache, found := events(3.0, 1.0))
    header = found[0]
    assert isinstance(header, RunStarted)
    for _ in range(result_cache.MOST_READ):
        opened(cache, header, again=True)[0].close()
    assert len(cache.known(key_of(found).work, [{"block": 16}, {"block": 32}])) == 2


def test_a_failure_that_may_pass_is_not_known(cache: ResultCache) -> None:
    run = events(1.0, None)
    put(cache, [msgspec.structs.replace(e, kind="timeout") if isinstance(e, BenchmarkFailed) else e for e in run])
    assert [entry.config for entry, _ in cache.known(key_of(run).work, CONFIGS).values()] == [{"block": 16}]


@pytest.mark.parametrize("how", ["gone", "cut", "other bytes"])
def test_a_journal_that_is_gone_or_damaged_is_a_miss_that_says_so(cache: ResultCache, how: str) -> None:
    run = events(3.0, 1.0)
    journal = put(cache, run)
    data = journal.read_bytes()
    if how == "gone":
        journal.unlink()
    else:
        journal.write_bytes(data[:-20] if how == "cut" else b"x\n" + data)
    if how == "cut":  # the run is unfinished now
        assert run_of(cache, run) is None
        return
    with pytest.warns(RuntimeWarning, match="is skipped"):
        assert run_of(cache, run) is None
    assert run_of(cache, run) is None  # it says so once
    assert [path for path, _ in cache.runs()] == ([] if how == "gone" else [journal])


def test_records_that_turn_out_to_be_damaged_are_a_miss(cache: ResultCache) -> None:
    journal = put(cache, events(3.0, 1.0))
    found = run_of(cache, events(3.0, 1.0))
    data = journal.read_bytes()
    journal.write_bytes(data.replace(b'"block":16', b'"block":17', 1))
    assert found is not None
    with pytest.warns(RuntimeWarning, match="does not match its checksum"):
        assert cache.result(found) is None
    assert run_of(cache, events(3.0, 1.0)) is None


def test_an_interrupted_run_whose_records_are_damaged_is_left_out_once(cache: ResultCache) -> None:
    run = events(3.0, 1.0, finished=False)
    header = cast(RunStarted, run[0])
    with opened(cache, header)[0] as journal:
        for event in run:
            journal.append(event)
    path = Path(journal.path)
    path.write_bytes(path.read_bytes().replace(b'"block":16', b'"block":17', 1))
    with pytest.warns(RuntimeWarning, match=r"is skipped: .*does not match its checksum"):
        begun, past = opened(cache, header)
    begun.close()
    assert begun.path != journal.path and past == []
    opened(cache, header)[0].close()  # it says so once, and does not read it again
    assert len(own(cache)) == 1 and path.exists()


# The clock


def test_what_a_clock_that_was_ahead_dated_is_older_than_what_came_after_it(cache: ResultCache) -> None:
    ahead = time.time() + 86400
    journal = put(cache, events(9.0, at=ahead))
    os.utime(journal, (ahead, ahead))
    assert (found := run_of(cache, events(1.0))) is not None and found.found.latency_ms == 9.0
    after = put(cache, events(2.0, at=time.time()))
    assert (found := run_of(cache, events(1.0))) is not None and found.found.latency_ms == 2.0
    assert cache.answers()[0].path == str(after) == str(cache.runs()[0][0])


# What is deleted


@pytest.mark.parametrize("how", ["a linked folder", "a linked file", "no journal", "elsewhere"])
@pytest.mark.parametrize("trims", [False, True])
def test_nothing_but_the_caches_own_journals_is_deleted(
    cache: ResultCache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str, trims: bool
) -> None:
    """Whatever the names in its folder are, and also where it is a journal."""
    put(cache, events(1.0, at=2.0))
    name = f"{key_of(events(2.0)).text}-1.jsonl"
    victim, inside = tmp_path / "victims" / name, cache.journals / "other" / name
    put(ResultCache(tmp_path / "other"), events(2.0), victim)
    if how == "a linked folder":
        inside.parent.symlink_to(victim.parent)
    else:
        inside.parent.mkdir()
    if how == "a linked file":
        inside.symlink_to(victim)
    elif how == "no journal":
        (victim := inside).write_text("what somebody wrote")
    elif how == "elsewhere":
        cache.add(victim)
    if trims:
        monkeypatch.setattr(result_cache, "MOST_CACHE_BYTES", 1)
        put(cache, events(1.0, at=3.0, problem={"M": 1}))
    with warnings.catch_warnings(action="ignore" if how == "no journal" else "error"):
        cache.clear()
    assert victim.exists() and not any(path.exists() for path, _ in cache.runs() if path != victim)
    assert cache.runs() == [] or how == "no journal"


def test_what_a_killed_program_left_empty_is_deleted(cache: ResultCache) -> None:
    """When another run ends, or with everything; but nothing that a run writes, or is about to lock."""
    (folder := cache.journals / "set").mkdir(parents=True)
    begun, _ = opened(cache, cast(RunStarted, events(1.0)[0]))
    dead, new, other = folder / "0000.jsonl", cache.new_path("new"), cache.journals / "empty.txt"
    for path in (dead, folder / "set.json", new, other):
        path.touch()
    for path in (dead, Path(begun.path), other):
        os.utime(path, (1.0, 1.0))
    done = put(cache, events(1.0, code="g"))
    assert not folder.exists() and sorted(own(cache)) == sorted([Path(begun.path), new, done])
    cache.clear()
    assert own(cache) == [Path(begun.path)] and other.exists()
    begun.close()


@pytest.mark.parametrize("beside", ["set.json", "set.lock", "notes.txt", "a lock that is held"])
def test_the_folder_of_a_set_goes_with_its_last_journal_unless_it_holds_more(cache: ResultCache, beside: str) -> None:
    for number in range(2):
        put(cache, events(1.0, problem={"M": number}), cache.journals / "set" / f"000{number}.jsonl")
    held = beside == "a lock that is held"
    (kept := cache.journals / "set" / ("set.lock" if held else beside)).touch()
    with Journal.create(kept) if held else nullcontext():
        cache.clear()
    assert own(cache) == [] and cache.runs() == []
    assert kept.parent.exists() == (held or beside == "notes.txt")


@pytest.mark.parametrize("of", ["the cache", "the journals", "a set", "a journal"])
def test_where_others_may_write_no_journal_is_deleted(cache: ResultCache, of: str) -> None:
    journal = put(cache, events(1.0), cache.journals / "set" / "0000.jsonl")
    places = {"the cache": cache.folder, "the journals": cache.journals, "a set": journal.parent, "a journal": journal}
    place = places[of]
    place.chmod(place.stat().st_mode | 0o020)
    kept = r"other users may write to .*, so no journal of the result cache is deleted"
    with pytest.warns(RuntimeWarning, match=kept):
        removed = cache.clear()
    assert removed == (place in (journal, journal.parent)) == (not cache.answers())  # the link to it is deleted
    assert journal.exists()


def test_a_path_that_is_not_utf8_is_found(cache: ResultCache, tmp_path: Path) -> None:
    journal = put(cache, events(1.0), Path(os.fsdecode(bytes(tmp_path / "own") + b"\xff.jsonl")))
    assert (found := run_of(cache, events(1.0))) is not None and found.path == str(journal)


def test_axes_and_arguments_keep_their_order(cache: ResultCache) -> None:
    config, problem = {"bm": 1, "bn": 2, "bk": 3}, {"M": 1, "N": 2, "K": 3}
    put(cache, with_configs(events(1.0, problem=problem), [config]))
    for entry in (*cache.entries(), *read_exported(cache.export())):
        assert list(entry.config) == list(config) and list(entry.parts.problem) == list(problem)
    assert same_problem(problem, dict(reversed(problem.items())))


def test_export(cache: ResultCache) -> None:
    put(cache, events(3.0, 1.0))
    put(cache, events(2.0, workload="softmax", code="g"))
    data = cache.export(kernel="gemm")
    assert data == cache.export(kernel="gemm")
    [entry] = read_exported(data)
    assert (entry.parts, entry.config, entry.latency_ms) == (key_of(events(3.0, 1.0)), {"block": 32}, 1.0)
    for bad in (b"", b"[]", b'{"format": "else", "schema": 1, "entries": []}', b"\xff\xfe"):
        with pytest.raises(UsageError, match="not a file of exported results"):
            read_exported(bad)
    with pytest.raises(UsageError, match="update atune"):
        read_exported(data.replace(b'"schema": 1', b'"schema": 9'))


def test_a_run_without_a_key_is_no_result(cache: ResultCache) -> None:
    """An older atune began it. What has no key either is not cleared with it."""
    settings: Any = msgspec.structs.asdict(events(1.0)[0])["settings"]
    uncached = put(cache, events(1.0, settings={**settings, "cache": "off"}))
    put(cache, events(1.0, code=""))
    assert cache.answers(kernel="gemm") == [] and cache.clear(cache.answers(kernel="gemm")) == 0
    assert uncached.exists()


def test_the_newest_journal_stays_however_long(cache: ResultCache, monkeypatch: pytest.MonkeyPatch) -> None:
    old = put(cache, events(1.0))
    monkeypatch.setattr(result_cache, "MOST_CACHE_BYTES", old.stat().st_size - 1)
    new = put(cache, events(1.0, at=2.0))
    assert new.exists() and not old.exists() and run_of(cache, events(1.0)) is not None


def test_the_oldest_journals_go_but_nobodys_own_and_none_that_is_written(
    cache: ResultCache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = put(cache, events(1.0, at=1.0), tmp_path / "own.jsonl")
    written = put(cache, events(1.0, at=2.0))
    sets = [put(cache, events(1.0, at=at), cache.journals / "set" / f"{at:.0f}.jsonl") for at in (3.0, 8.0)]
    (cache.journals / "set" / "set.json").touch()
    old, new = (put(cache, events(1.0, at=at)) for at in (4.0, 9.0))
    monkeypatch.setattr(result_cache, "MOST_CACHE_BYTES", 3 * mine.stat().st_size + 9)
    with Journal.reopen(written)[0]:
        last = put(cache, events(1.0, at=10.0))
    assert mine.exists() and written.exists() and last.exists() and new.exists() and not old.exists()
    assert not any(path.exists() for path in sets) and not (cache.journals / "set").exists()
    assert len(cache.runs()) == 4


def test_a_journal_whose_folder_is_away_while_another_run_ends_is_found_again(
    cache: ResultCache, tmp_path: Path
) -> None:
    """But what was deleted from the cache's own folder leaves no link."""
    (nfs := tmp_path / "nfs").mkdir()
    mine, inside = put(cache, events(1.0), nfs / "mine.jsonl"), put(cache, events(1.0, code="g"))
    nfs.rename(tmp_path / "away")
    inside.unlink()
    last = put(cache, events(1.0, code="h"))
    (tmp_path / "away").rename(nfs)
    found = run_of(cache, events(1.0))
    assert found is not None and found.path == str(mine)
    assert sorted(path for path, _ in cache.runs()) == sorted([mine, last])
    assert len([path for path in cache.journals.rglob("*.jsonl") if path.is_symlink()]) == 2


# What the key covers


def test_a_kernel_that_was_called_keeps_its_key() -> None:
    """tilelang writes its own form of `out_idx` into a kernel that it compiles."""
    import decorated

    before = cached_work(workload(kernel=decorated.scale_jit), target="c").key.text
    decorated.scale_jit(64, block=16)
    assert decorated.scale_jit.out_idx == [1]
    assert cached_work(workload(kernel=decorated.scale_jit), target="c").key.text == before


def test_the_key_holds_space_settings_and_problem() -> None:
    plain = cached_work(workload(), target="c").key
    assert plain.device and plain.versions["tilelang"] and plain.target == "c"
    assert cached_work(workload(), target="c", benchmark=QUICK).key.work != plain.work
    assert cached_work(workload(atune.Space(factor=[2], block=[16])), target="c").key.work == plain.work
    assert cached_work(workload(atune.Space(factor=[2], block=[16])), target="c").key.text != plain.text
    assert cached_work(workload(), target="c", budget=2).key.text != plain.text
    bucket = workload()
    bucket.key = {"bucket": 8}
    found = cached_work(bucket, target="c").key
    assert found.problem == {"bucket": 8} and found.tuned_for == {"n": 256}


# With the engine


def run_here(cache: ResultCache, space: atune.Space | None = None, on_event: Any = None, **options: Any) -> Result:
    work = cached_work(workload(space), target="c", benchmark=QUICK, on_event=on_event)
    return run_cached(work, cache, **options)


def test_a_second_tuning_is_a_look_up(cache: ResultCache, monkeypatch: pytest.MonkeyPatch) -> None:
    first = run_here(cache)
    assert not first.cache_hit and first.best_config is not None and first.best_config["factor"] == 2
    with monkeypatch.context() as patch:
        patch.delattr(cached, "tune_planned")  # nothing may be tuned
        again = run_here(cache)
    assert again.cache_hit and again.best_config == first.best_config
    assert again.records == first.records
    import torch

    A = torch.randn(256)
    assert torch.equal(again.kernel(A), doubled(A))
    assert again.journal == first.journal
    assert not run_here(cache, refresh=True).cache_hit
    assert len(cache.runs()) == 2


def test_a_changed_list_measures_only_what_is_new(cache: ResultCache) -> None:
    run_here(cache, atune.Space(factor=[1, 2], block=[16, 64]))
    seen: list[Event] = []
    result = run_here(cache, atune.Space(factor=[2, 3], block=[64, 128]), on_event=seen.append)
    resumed = next(i for i, e in enumerate(seen) if isinstance(e, RunResumed))
    proposed = [e.config for e in seen[resumed:] if isinstance(e, CandidateProposed)]
    assert [(c["factor"], c["block"]) for c in proposed] == [(2, 128), (3, 64), (3, 128)]
    assert result.baseline is not None and result.baseline.config == {"factor": 1, "block": 64}
    assert result.total == 4 and result.measured == 2 and result.failed == 2
    assert result.best_config is not None and result.best_config["factor"] == 2


def test_a_default_from_outside_of_the_space_is_measured_once(cache: ResultCache) -> None:
    run_here(cache, atune.Space(factor=[2], block=[16]))
    seen: list[Event] = []
    result = run_here(cache, atune.Space(factor=[2], block=[32]), on_event=seen.append)
    assert result.baseline is not None and result.baseline.status == "failed"  # its output is not doubled
    assert [event.index for event in seen if isinstance(event, BenchmarkStarted)] == [0]


def test_without_a_winner_the_next_call_tries_again(cache: ResultCache) -> None:
    """What failed for good is known then, and is not compiled again."""
    space = atune.Space(factor=[1, 3])
    for attempt in (1, 2):
        seen: list[Event] = []
        with pytest.raises(NoWinner, match="gave wrong outputs") as raised:
            run_here(cache, space, on_event=seen.append)
        assert "for example, candidate" in str(raised.value) and str(raised.value.result.journal) in str(raised.value)
        resumed = next((i for i, e in enumerate(seen) if isinstance(e, RunResumed)), 0)
        assert sum(isinstance(e, BenchmarkFailed) for e in seen[resumed:]) == (2 if attempt == 1 else 0)


TUNER = """
import atune
from decorated import QUICK, workload
print(atune.run(workload(), target="c", benchmark=QUICK, cached=True).cache_hit)
"""


def test_of_cached_tunes_at_the_same_time_one_measures(cache: ResultCache, monkeypatch: pytest.MonkeyPatch) -> None:
    """In two processes, and twice in one event loop."""
    monkeypatch.setenv("ATUNE_CACHE_DIR", str(cache.folder))
    command = [sys.executable, "-c", TUNER]

    async def both() -> list[bool]:
        tunes = (atune.tune(workload(), target="c", benchmark=QUICK, cached=True) for _ in range(2))
        return [result.cache_hit for result in await asyncio.gather(*tunes)]

    with subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE) as it:
        assert sorted([*asyncio.run(both()), it.communicate(timeout=150)[0] == b"True\n"]) == [False, True, True]
    assert len(own(cache)) == 1


KILLED = """
import os, sys
from decorated import QUICK, cached_work, run_cached, workload
from atune.journal.events import CandidateMeasured
from atune.workers.result_cache import ResultCache

def die(event):
    if isinstance(event, CandidateMeasured):
        os.kill(os.getpid(), 9)

run_cached(cached_work(workload(), target="c", benchmark=QUICK, on_event=die), ResultCache(sys.argv[1]))
"""


def test_a_process_that_dies_while_it_tunes_loses_its_turn_and_nothing_measured(cache: ResultCache) -> None:
    """The next one resumes the journal that the cache kept."""
    died = subprocess.run([sys.executable, "-c", KILLED, str(cache.folder)], env=environment(), timeout=100)
    assert died.returncode == -9
    [journal] = own(cache)
    done = {e.index for e in read(journal) if isinstance(e, (CandidateMeasured, BenchmarkFailed))}
    seen: list[Event] = []
    result = run_here(cache, on_event=seen.append)
    assert not result.cache_hit and result.measured == 2
    resumed = next(i for i, e in enumerate(seen) if isinstance(e, RunResumed))
    outcomes = {e.index for e in seen[resumed:] if isinstance(e, (CandidateMeasured, BenchmarkFailed))}
    assert done and not done & outcomes
    assert own(cache) == [journal] and result.journal == str(journal)


def test_the_journal_of_other_sizes_with_the_same_key_is_not_taken_up(cache: ResultCache) -> None:
    first, other = (workload(n=n) for n in (256, 320))
    for one in (first, other):
        one.key = {"bucket": 8}
    with opened(cache, header := cached_work(first, target="c").header)[0] as journal:
        journal.append(header)
    for asks, n_events in ((cached_work(other, target="c").header, 0), (header, 1)):
        journal, past = opened(cache, asks)
        journal.close()
        assert len(past) == n_events


def test_of_results_under_one_key_the_newest_of_the_same_kernel_answers(cache: ResultCache) -> None:
    """One that does not identify its kernel never does. Said once where there is none."""
    put(cache, events(2.0, 3.0, digests="old"))
    put(cache, events(2.0, 1.0, digests="new", at=2.0))
    put(cache, events(2.0, 1.0, digests="", at=3.0))
    key = key_of(events(1.0, 1.0))

    def still(digest: str) -> Any:
        return lambda arguments, recorded: arguments == {"M": 64} and all(one == digest for _, one in recorded)

    for digest, config in (("old", {"block": 16}), ("new", {"block": 32})):
        found = cache.find(key, None, still(digest))
        assert found is not None and found.config == config
    why = r"because its journal does not identify the kernel \(an older atune wrote it"
    with pytest.warns(RuntimeWarning, match=rf"does not use the result of gemm in .*, {why}"):
        assert cache.find(key, None, still("")) is None
    assert cache.find(key, None, still("")) is None


def test_a_waiting_run_elaborates_once(cache: ResultCache, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATUNE_CACHE_DIR", str(cache.folder))
    header, recall, asked = events(1.0)[0], cast(Any, recaller(True, "run", unless_asked=False)), list[Candidate]()

    def kernels(candidates: Iterable[Candidate]) -> dict[int, str]:
        asked.extend(candidates)
        if len(asked) == 1:  # another run ends between the look and the claim
            put(cache, events(1.0, digests="other", at=time.time()))
        return {0: "now"}

    put(cache, events(1.0, digests="old"))
    with opened(cache, cast(Any, header), still=lambda *_: False)[0], pytest.warns(match="has changed since"):
        assert [recall(header, None, kernels, "here") for _ in range(4)] == [None] * 4
    assert len(asked) == 2


def test_each_run_of_a_plan_judges_kernels_by_its_own_problem(
    cache: ResultCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A set's problems, which share a plan, may have one key; what was measured for one is not another's."""
    monkeypatch.setenv("ATUNE_CACHE_DIR", str(cache.folder))
    put(cache, events(1.0, digests="same"))
    header, recall = cast(Any, events(1.0)[0]), cast(Any, recaller(True, "tune", unless_asked=False))
    for M, whole in ((128, False), (64, True), (128, False)):
        asked, spec = msgspec.structs.replace(header, arguments={"M": M}), SimpleNamespace(configs=())
        with warnings.catch_warnings(action="ignore"):  # that the kernel has changed since
            found = recall(asked, spec, lambda _: {0: "same"}, "")
        assert bool(found.whole) is whole


def test_an_interrupted_run_of_another_kernel_is_not_continued(cache: ResultCache) -> None:
    work = cached_work(workload(), target="c", benchmark=QUICK)
    config, common = {"factor": 1, "block": 16}, {"time": 1.0, "mono": 0.0, "index": 0}
    with opened(cache, work.header)[0] as journal:
        journal.append(work.header)
        journal.append(CandidateProposed(seq=1, key=config_key(config), config=config, **common))
        digest = work.digest(work.spec.arguments, config)
        journal.append(
            CandidateLowered(seq=2, code_key="c", ir_digest=digest, facts=StaticFacts(), seconds=0.0, **common)
        )
    for still, n_events in ((lambda *_: False, 0), (work.still, 3)):
        journal, past = opened(cache, work.header, still=still)
        journal.close()
        assert digest and len(past) == n_events
        if not past:
            cache.discard(journal.path)


def test_a_run_that_was_continued_with_other_work_is_not_taken_up(cache: ResultCache) -> None:
    work = cached_work(workload(), target="c", benchmark=QUICK)
    with opened(cache, work.header)[0] as journal:
        journal.append(work.header)
        journal.append(
            RunResumed(
                seq=1, time=1.0, mono=0.0, part=1, versions={**work.versions, "atune": "0"}, accepted=("versions",)
            )
        )
    assert run_here(cache).journal != journal.path
    assert run_here(cache).cache_hit


def test_a_tuning_that_is_cancelled_while_it_begins_leaves_no_lock(
    cache: ResultCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    work, may, ended = cached_work(workload(), target="c", benchmark=QUICK), threading.Event(), threading.Event()
    begin = cache.begin

    def slow(header: RunStarted, **options: Any) -> Any:
        may.wait(60)
        found = begin(header, **options)
        ended.set()
        return found

    monkeypatch.setattr(cache, "begin", slow)

    async def cancelled() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.5):
                await tune_work(work, cache)

    asyncio.run(cancelled())
    may.set()
    assert ended.wait(60)
    wait_until(lambda: begin(work.header) is not None, 20, "the lock")


@pytest.mark.parametrize("what", ["its journal", "the whole cache"])
def test_a_journal_that_is_removed_in_a_run_costs_a_warning(
    cache: ResultCache, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ATUNE_CACHE_DIR", str(cache.folder))

    def remove(event: Event) -> None:
        if isinstance(event, CandidateMeasured) and cache.journals.exists():
            shutil.rmtree(cache.journals if what == "its journal" else cache.folder)

    with pytest.warns(RuntimeWarning, match=r"the journal .*\.jsonl was removed during the run.*result is valid"):
        result = atune.run(workload(), target="c", benchmark=QUICK, progress=False, on_event=remove)
    assert result.best_config is not None and result.measured == 2 and cache.runs() == []


def test_a_cache_that_cannot_be_used_costs_no_tuning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("ATUNE_CACHE_DIR", str(tmp_path / "file"))
    with pytest.warns(RuntimeWarning, match="cannot be used"):
        result = run_here(ResultCache(tmp_path / "file" / "results"))
    assert not result.cache_hit and result.journal is None
