"""The result cache: what its key covers, what its index answers, and that it never costs the run."""

from __future__ import annotations

import asyncio
import os
import shutil
import sqlite3
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Iterable, Sequence
from contextlib import ExitStack, nullcontext
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import Mock

import msgspec
import pytest
from cache_entries import events, key_of, put, run_of
from decorated import QUICK, cached_work, doubled, run_cached, workload
from processes import environment, wait_until

import atune
from atune.errors import NoWinner, UsageError
from atune.frontends.api import cached_tune as cached
from atune.frontends.api.cached_tune import tune_work
from atune.frontends.api.warm_start import recaller
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
from atune.journal.reader import read
from atune.journal.result import Result
from atune.journal.writer import Journal, line_of
from atune.model.artifact import StaticFacts
from atune.model.candidate import Candidate, config_key
from atune.workers.storage import result_cache
from atune.workers.storage.result_cache import IndexedRun, ResultCache
from atune.workers.storage.result_key import ResultKey, read_exported, same_problem

CONFIGS = [{"block": 16}, {"block": 32}, {"block": 64}]


@pytest.fixture
def cache(tmp_path: Path) -> ResultCache:
    return ResultCache(tmp_path / "results")


def opened(cache: ResultCache, header: RunStarted, **options: Any) -> tuple[Journal, Sequence[Any]]:
    begun = cache.begin(header, **options)
    assert begun is not None and begun[0] is not None
    return begun[0], begun[1]


def test_a_result_comes_back_with_every_record(cache: ResultCache) -> None:
    run = events(3.0, 1.0, None)
    assert run_of(cache, run) is None and not cache.folder.exists()  # looking makes nothing
    journal = put(cache, run)
    found = run_of(cache, run)
    assert found is not None and (found.config, found.latency_ms, found.path) == ({"block": 32}, 1.0, str(journal))
    result = cache.result(found)
    assert result is not None and result.cache_hit and result.best_config == {"block": 32}
    assert [record.status for record in result.records] == ["measured", "measured", "failed"]
    assert run_of(cache, events(1.0, problem={"M": 128})) is None
    assert isinstance(run[0], RunStarted) and cache.begin(run[0]) is None  # it may have ended since it was looked up


def test_a_look_up_reads_no_records(cache: ResultCache, monkeypatch: pytest.MonkeyPatch) -> None:
    put(cache, events(3.0, 1.0))
    monkeypatch.delattr(result_cache, "read")
    monkeypatch.delattr(result_cache, "JournalReader")
    found = run_of(cache, events(3.0, 1.0))
    assert found is not None and found.latency_ms == 1.0


def test_the_newest_run_of_a_key_answers(cache: ResultCache) -> None:
    for at, latency in ((5.0, 2.0), (9.0, 4.0), (7.0, 1.0)):
        put(cache, events(latency, at=at))
    found = run_of(cache, events(1.0))
    assert found is not None and found.latency_ms == 4.0 and len(cache.entries()) == 1


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
    ("budget", "more", "reason", "cache_use", "status"),
    [
        ({}, [], "", "", "unfinished"),
        ({}, [RESUMED], "stopped", "", "partial"),
        ({}, [RESUMED], "budget", "", "partial"),
        ({"candidates": 3}, [RESUMED], "budget", "", "partial"),
        ({"candidates": 2}, [RESUMED], "budget", "", "finished"),
        ({}, [msgspec.structs.replace(RESUMED, accepted=("kernel: edited",)), RESUMED], "exhausted", "", "partial"),
        ({}, [RESUMED], "exhausted", "", "finished"),
        ({}, [], "exhausted", "refresh", "refreshed"),
        ({}, [], "exhausted", "off", "uncached"),
    ],
)
def test_only_a_whole_run_of_what_its_header_asks_for_answers(
    cache: ResultCache, budget: dict[str, int], more: list[Event], reason: str, cache_use: str, status: str
) -> None:
    """Others are indexed as what they are, and their measurements are known, but for those that use no cache."""
    header, *others = events(3.0, 1.0, finished=False)
    assert isinstance(header, RunStarted)
    settings = {**header.settings, "budget": budget, **({"cache": cache_use} if cache_use else {})}
    ends = [msgspec.structs.replace(ENDED, reason=reason)] if reason else []
    run = [msgspec.structs.replace(header, total=9, settings=settings), *others, *more, *ends]
    put(cache, [msgspec.structs.replace(event, seq=seq) for seq, event in enumerate(run)])
    assert [one.status for one in cache.runs()] == [status]
    assert (run_of(cache, run) is None) == (status not in ("finished", "refreshed"))
    assert len(cache.known(key_of(run).work, CONFIGS)) == (0 if status == "uncached" else 2)


def test_known_outcomes_are_those_of_the_same_work_the_newest_of_each(cache: ResultCache) -> None:
    put(cache, events(1.0, at=9.0))
    put(cache, events(5.0, 2.0, None))
    known = cache.known(key_of(events(1.0, space="another")).work, CONFIGS)
    times = [one.timing.latency_ms for _, one in known.values() if isinstance(one, CandidateMeasured)]
    assert sorted(times) == [1.0, 2.0] and len(known) == 3
    assert cache.known(key_of(events(1.0, versions={"atune": "2"})).work, CONFIGS) == {}


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


@pytest.mark.parametrize("where", [None, 0.0, 0.5, 0.9])
def test_an_index_that_is_damaged_or_gone_is_made_again(cache: ResultCache, where: float | None) -> None:
    for i in range(12):
        put(cache, events(1.0 + i, problem={"M": i}))
    (cache.journals / "torn.jsonl").write_text("{")
    before = {run.path: run for run in cache.runs()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        if where is None:
            cache.path.unlink()
        else:
            data = cache.path.read_bytes()
            cache.path.write_bytes(b"no index" * 99 if where == 0.0 else data[: int(len(data) * where)])
        for i in range(12):
            found = run_of(cache, events(1.0, problem={"M": i}))
            assert found is not None and found.latency_ms == 1.0 + i
    after = {run.path: run for run in cache.runs()}
    assert after.keys() - before.keys() <= {str(cache.journals / "torn.jsonl")}
    assert all(after[path] == run for path, run in before.items())


def test_an_index_that_another_process_made_again_meanwhile_stays(
    cache: ResultCache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = put(cache, events(1.0))
    cache.add(journal.rename(tmp_path / "outside"))  # of which the cache's own journals tell nothing
    whole = cache.path.read_bytes()
    cache.path.write_bytes(b"no index" * 99)
    theirs = SimpleNamespace(LOCK_EX=0, flock=lambda *_: cache.path.write_bytes(whole))
    monkeypatch.setattr(result_cache, "fcntl", theirs)
    assert str(tmp_path / "outside") in {run.path for run in cache.runs()}


def test_processes_that_find_a_damaged_index_at_once_all_use_it(cache: ResultCache) -> None:
    for i in range(3):
        put(cache, events(1.0, problem={"M": i}))
    ask = f"from atune.workers.storage.result_cache import ResultCache as C\nc = C({str(cache.folder)!r})\n"
    ask += "for _ in iter(input, ''):\n    print(len(c.runs()), flush=True)"
    command = [sys.executable, "-W", "ignore", "-c", ask]
    with ExitStack() as stack:
        pipe = subprocess.PIPE
        several = [stack.enter_context(subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True)) for _ in range(3)]
        for number in range(40):
            cache.path.write_bytes(b"no index" * 99)
            for one in several:
                print("again", file=one.stdin, flush=True)
            assert [one.stdout and one.stdout.readline() for one in several] == ["3\n"] * 3, f"time {number}"
        for one in several:
            print(file=one.stdin, flush=True)


@pytest.mark.parametrize("how", ["gone", "cut", "other bytes"])
def test_a_journal_that_is_gone_or_damaged_is_a_miss_that_says_so(cache: ResultCache, how: str) -> None:
    run = events(3.0, 1.0)
    journal = put(cache, run)
    data = journal.read_bytes()
    if how == "gone":
        journal.unlink()
    else:
        journal.write_bytes(data[:-20] if how == "cut" else b"x" * len(data))
    if how == "cut":  # the run is unfinished now
        assert run_of(cache, run) is None and [one.status for one in cache.runs()] == ["unfinished"]
        return
    with pytest.warns(RuntimeWarning, match="is left out"):
        assert run_of(cache, run) is None
    assert cache.runs() == []


def test_records_that_turn_out_to_be_damaged_are_a_miss(cache: ResultCache) -> None:
    journal = put(cache, events(3.0, 1.0))
    found = run_of(cache, events(3.0, 1.0))
    data = journal.read_bytes()
    journal.write_bytes(data.replace(b'"block":16', b'"block":17', 1))
    assert found is not None
    with pytest.warns(RuntimeWarning, match="does not match its checksum"):
        assert cache.result(found) is None
    assert run_of(cache, events(3.0, 1.0)) is None


ROWS = {
    "no text": None, "a number": 5, "another text": "abc", "other bytes": b"\xff\x00", "a list": b"[]",
    "deep": b'{"path": "x", "config": {"a": ' + b"[" * 900 + b"]" * 900 + b"}}",
    "less deep": b'{"path": "x", "config": {"a": ' + b"[" * 200 + b"]" * 200 + b"}}",
    "another name": b'{"pat\xff": "x"}',
    "a path with a NUL": b'{"path": "/tmp/a\\u0000b", "status": "finished"}',
    "5,000 digits": b'{"path": "x", "winner": ' + b"9" * 5000 + b"}",
}  # fmt: skip
"""What no run wrote into a row."""
CHANGES = ("DROP TABLE runs", "ALTER TABLE runs RENAME COLUMN run TO walk", "PRAGMA user_version = 0")


@pytest.mark.parametrize("damage", [*ROWS, *CHANGES])
def test_an_index_that_holds_what_no_run_wrote_is_made_again(cache: ResultCache, damage: str) -> None:
    """Its rows say that they are of the work that is asked for."""
    run = events(3.0, 1.0)
    put(cache, run)
    put(cache, other := events(2.0, problem={"M": 1}))
    with sqlite3.connect(cache.path) as db:
        if damage in ROWS:
            db.execute("UPDATE runs SET run = ?, key = ?, work = ?", (ROWS[damage], key_of(run).text, key_of(run).work))
        else:
            db.execute(damage)
    db.close()
    with pytest.warns(RuntimeWarning, match="was damaged .* and is made again"):
        assert (found := run_of(cache, run)) is not None and found.latency_ms == 1.0
    with warnings.catch_warnings(action="error"):
        assert run_of(cache, other) is not None and len(cache.runs()) == 2 and cache.clear() == 2


def test_a_flipped_bit_of_the_index_costs_no_call(cache: ResultCache) -> None:
    runs = [events(1.0 + size, problem={"M": size}) for size in range(3)]
    for run in runs:
        put(cache, run)
    whole, random, right = cache.path.read_bytes(), Random(56), 0
    used = [place for place, byte in enumerate(whole) if byte]
    for _ in range(60):
        data = bytearray(whole)
        data[random.choice(used)] ^= 1 << random.randrange(8)
        cache.path.write_bytes(data)
        with warnings.catch_warnings(action="ignore"):
            right += (found := run_of(cache, runs[2])) is not None and found.latency_ms == 3.0
            opened(cache, cast(RunStarted, runs[1][0]), again=True)[0].close()
            cache.known(key_of(runs[0]).work, CONFIGS)
            assert cache.runs() and cache.answers() and cache.export()
    assert right > 50


@pytest.mark.parametrize("interrupted", [False, True])
@pytest.mark.parametrize("code", [sqlite3.SQLITE_FULL, sqlite3.SQLITE_CORRUPT])
def test_a_run_whose_row_cannot_be_written_leaves_no_journal_open(
    cache: ResultCache, monkeypatch: pytest.MonkeyPatch, code: int, interrupted: bool
) -> None:
    """What is damaged is looked at again: the journal that the first attempt opened is no other program's."""
    header = cast(RunStarted, events(1.0)[0])
    with opened(cache, header)[0] as first:
        if interrupted:
            first.append(header)
    error = sqlite3.OperationalError("a disk that is full, or damage")
    error.sqlite_errorcode = code  # type: ignore[misc]
    full = code == sqlite3.SQLITE_FULL
    with monkeypatch.context() as patch, pytest.warns(RuntimeWarning, match="is full") if full else nullcontext():
        for name in ("_write", "_continues"):
            patch.setattr(result_cache, name, Mock(side_effect=error if full else [error, True]))
        begun = cache.begin(header)
    files = [os.path.realpath(f"/proc/self/fd/{number}") for number in os.listdir("/proc/self/fd")]
    assert begun is not None and (begun[0] is None) == full
    assert [path for path in files if path.endswith(".jsonl")] == [one.path for one in begun[:1] if one is not None]
    if begun[0] is not None:
        assert (begun[0].path == first.path) == interrupted
        begun[0].close()
    assert all(path.stat().st_size for path in cache.journals.iterdir())


# The clock


def test_what_a_clock_that_was_ahead_dated_is_older_than_what_came_after_it(cache: ResultCache) -> None:
    """Also once the index is made again."""
    ahead = time.time() + 86400
    journal = put(cache, events(9.0, at=ahead))
    os.utime(journal, (ahead, ahead))
    cache.add(journal)
    assert (found := run_of(cache, events(1.0))) is not None and found.latency_ms == 9.0
    after = put(cache, events(2.0, at=time.time()))
    for _ in range(2):
        assert (found := run_of(cache, events(1.0))) is not None and found.latency_ms == 2.0
        assert cache.answers()[0].path == cache.runs()[0].path == str(after)
        cache.path.unlink()


# What is deleted


@pytest.mark.parametrize("how", ["..", "a linked folder", "a linked file", "no journal", "elsewhere"])
@pytest.mark.parametrize("trims", [False, True])
def test_nothing_but_the_caches_own_journals_is_deleted(
    cache: ResultCache, tmp_path: Path, how: str, trims: bool
) -> None:
    """Whatever a row names, and also where it is a journal."""
    put(cache, events(1.0, at=2.0))
    victim, inside = tmp_path / "victims" / "journal.jsonl", cache.journals / "set" / "journal.jsonl"
    put(ResultCache(tmp_path / "other"), events(1.0), victim)
    if how == "a linked folder":
        inside.parent.symlink_to(victim.parent)
    else:
        inside.parent.mkdir()
    if how == "a linked file":
        inside.symlink_to(victim)
    elif how == "no journal":
        (victim := inside).write_text("what somebody wrote")
    named = {"..": cache.journals / ".." / ".." / "victims" / "journal.jsonl", "elsewhere": victim}.get(how, inside)
    row = IndexedRun(path=str(named), status="finished", key="k", work="w", kernel="gemm", time=1.0, bytes=1 << 40)
    cache._use(lambda db: result_cache._write(db, row), None)
    if trims:
        put(cache, events(1.0, at=3.0, problem={"M": 1}))
    cache.clear()
    assert victim.exists() and cache.runs() == [] and not [*cache.journals.glob("run-*.jsonl")]


@pytest.mark.parametrize("beside", ["set.json", "set.lock", "notes.txt", "a lock that is held"])
def test_the_folder_of_a_set_goes_with_its_last_journal_unless_it_holds_more(cache: ResultCache, beside: str) -> None:
    for number in range(2):
        put(cache, events(1.0, problem={"M": number}), cache.journals / "set" / f"000{number}.jsonl")
    held = beside == "a lock that is held"
    (kept := cache.journals / "set" / ("set.lock" if held else beside)).touch()
    with Journal.create(kept) if held else nullcontext():
        cache.clear()
    assert not [*cache.journals.glob("*/*.jsonl")]
    assert kept.parent.exists() == (held or beside == "notes.txt")


@pytest.mark.parametrize("of", ["the cache", "the index", "the journals", "a set", "a journal"])
def test_where_others_may_write_no_journal_is_deleted(cache: ResultCache, of: str) -> None:
    journal = put(cache, events(1.0), cache.journals / "set" / "0000.jsonl")
    places = {"the cache": cache.folder, "the index": cache.path, "the journals": cache.journals}
    place = {**places, "a set": journal.parent, "a journal": journal}[of]
    place.chmod(place.stat().st_mode | 0o020)
    with pytest.warns(RuntimeWarning, match="no journal of the result cache is deleted: others may write"):
        assert cache.clear() == 1
    assert journal.exists() and cache.answers() == []


def test_a_path_that_is_not_utf8_costs_a_warning(cache: ResultCache) -> None:
    with pytest.warns(RuntimeWarning, match="cannot be used"):
        cache.note(os.fsdecode(b"/tmp/own\xff.jsonl"))


def test_axes_and_arguments_keep_their_order(cache: ResultCache) -> None:
    config, problem = {"bm": 1, "bn": 2, "bk": 3}, {"M": 1, "N": 2, "K": 3}
    run = [
        msgspec.structs.replace(event, config=config, key=config_key(config))
        if isinstance(event, CandidateProposed)
        else event
        for event in events(1.0, problem=problem)
    ]
    put(cache, run)
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


def test_clear_deletes_the_caches_own_journals_alone(cache: ResultCache, tmp_path: Path) -> None:
    for kernel, size in (("gemm", 1), ("gemm", 2), ("softmax", 1)):
        put(cache, events(1.0, workload=kernel, kernel=kernel, code=kernel, problem={"M": size}))
    own = put(cache, events(1.0, problem={"M": 9}), tmp_path / "own.jsonl")
    assert cache.clear(cache.answers(kernel="softmax")) == 1 and len(list(cache.journals.iterdir())) == 2
    [left] = [entry for entry in cache.entries() if entry.parts.problem == {"M": 1}]
    assert cache.clear(cache.answers(key=left.key[:8])) == 1 and len(list(cache.journals.iterdir())) == 1
    assert cache.clear() == 2 and cache.runs() == [] and own.exists() and not list(cache.journals.iterdir())


def test_a_run_without_a_key_is_no_result(cache: ResultCache) -> None:
    """An older atune began it. What has no key either is not cleared with it."""
    settings: Any = msgspec.structs.asdict(events(1.0)[0])["settings"]
    uncached = put(cache, events(1.0, settings={**settings, "cache": "off"}))
    put(cache, events(1.0, code=""))
    assert cache.answers(kernel="gemm") == [] and cache.clear(cache.answers(kernel="gemm")) == 0
    assert uncached.exists()


def test_the_newest_journal_stays_however_long(cache: ResultCache, monkeypatch: pytest.MonkeyPatch) -> None:
    old = put(cache, events(1.0))
    monkeypatch.setattr(result_cache, "MOST_BYTES", old.stat().st_size - 1)
    new = put(cache, events(1.0, at=2.0))
    assert new.exists() and not old.exists() and run_of(cache, events(1.0)) is not None


def test_the_oldest_journals_go_but_nobodys_own_and_none_that_is_written(
    cache: ResultCache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = put(cache, events(1.0, at=1.0), tmp_path / "own.jsonl")
    written = put(cache, events(1.0, at=2.0))
    sets = [put(cache, events(1.0, at=at), cache.journals / "set" / f"{at:.0f}.jsonl") for at in (3.0, 8.0)]
    old, new = (put(cache, events(1.0, at=at)) for at in (4.0, 9.0))
    monkeypatch.setattr(result_cache, "MOST_BYTES", 3 * own.stat().st_size + 9)
    with Journal.reopen(written)[0]:
        last = put(cache, events(1.0, at=10.0))
    assert own.exists() and written.exists() and last.exists() and new.exists() and not old.exists()
    assert not any(path.exists() for path in sets) and not (cache.journals / "set").exists()
    assert len(cache.runs()) == 4


WRITER = """
import sys
from cache_entries import events, put
from atune.workers.storage.result_cache import ResultCache
cache = ResultCache(sys.argv[1])
for i in range(10):
    put(cache, events(1.0, problem={"M": [int(sys.argv[2]), i]}))
"""


def test_many_processes_write_at_once(cache: ResultCache) -> None:
    command = [sys.executable, "-W", "error", "-c", WRITER, str(cache.folder)]
    writers = [subprocess.Popen([*command, str(i)], env=environment()) for i in range(3)]
    assert [writer.wait(100) for writer in writers] == [0, 0, 0]
    assert len(cache.entries()) == 30


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
    assert [run.status for run in cache.runs()] == ["refreshed", "finished"]


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
        assert "for example candidate" in str(raised.value) and str(raised.value.result.journal) in str(raised.value)
        resumed = next((i for i, e in enumerate(seen) if isinstance(e, RunResumed)), 0)
        assert sum(isinstance(e, BenchmarkFailed) for e in seen[resumed:]) == (2 if attempt == 1 else 0)


def test_a_journal_of_the_cache_that_is_damaged_costs_nothing(cache: ResultCache) -> None:
    work = cached_work(workload(), target="c", benchmark=QUICK)
    journal, _ = opened(cache, work.header)
    journal.close()
    Path(journal.path).write_bytes(b"rubbish\n" + b"".join(map(line_of, events(1.0))))
    with pytest.warns(RuntimeWarning, match="is left out"):
        result = run_here(cache)
    assert result.measured == 2 and not result.cache_hit
    assert run_here(cache).cache_hit


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
    assert len(list(cache.journals.iterdir())) == 1


KILLED = """
import os, sys
from decorated import QUICK, cached_work, run_cached, workload
from atune.journal.events import CandidateMeasured
from atune.workers.storage.result_cache import ResultCache

def die(event):
    if isinstance(event, CandidateMeasured):
        os.kill(os.getpid(), 9)

run_cached(cached_work(workload(), target="c", benchmark=QUICK, on_event=die), ResultCache(sys.argv[1]))
"""


def test_a_process_that_dies_while_it_tunes_loses_its_turn_and_nothing_measured(cache: ResultCache) -> None:
    """The next one resumes the journal that the cache kept."""
    died = subprocess.run([sys.executable, "-c", KILLED, str(cache.folder)], env=environment(), timeout=100)
    assert died.returncode == -9
    [journal] = cache.journals.iterdir()
    done = {e.index for e in read(journal) if isinstance(e, (CandidateMeasured, BenchmarkFailed))}
    seen: list[Event] = []
    result = run_here(cache, on_event=seen.append)
    assert not result.cache_hit and result.measured == 2
    resumed = next(i for i, e in enumerate(seen) if isinstance(e, RunResumed))
    outcomes = {e.index for e in seen[resumed:] if isinstance(e, (CandidateMeasured, BenchmarkFailed))}
    assert done and not done & outcomes
    assert list(cache.journals.iterdir()) == [journal] and result.journal == str(journal)


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
    with pytest.warns(
        RuntimeWarning, match=r"not used, because its journal does not identify the kernel \(an older atune wrote it"
    ):
        assert cache.find(key, None, still("")) is None
    assert cache.find(key, None, still("")) is None


def test_a_waiting_run_elaborates_once_and_without_a_lock(cache: ResultCache, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATUNE_CACHE_DIR", str(cache.folder))
    header, recall, asked = events(1.0)[0], cast(Any, recaller(True, "run", unless_asked=False)), list[Candidate]()

    def kernels(candidates: Iterable[Candidate]) -> dict[int, str]:
        asked.extend(candidates)
        sqlite3.connect(cache.path, timeout=0).execute("BEGIN IMMEDIATE").connection.close()
        if len(asked) == 1:  # another run ends between the look and the claim
            put(cache, events(1.0, digests="other", at=time.time()))
        return {0: "now"}

    put(cache, events(1.0, digests="old"))
    with opened(cache, cast(Any, header), still=lambda *_: False)[0], pytest.warns(match="has changed since"):
        assert [recall(header, None, kernels, "here") for _ in range(4)] == [None] * 4
    assert len(asked) == 2


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
        cache.discard(journal.path if not past else "")


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

    with pytest.warns(
        RuntimeWarning, match=r"the journal .*\.jsonl was removed while the run wrote it.*result is valid"
    ):
        result = atune.run(workload(), target="c", benchmark=QUICK, progress=False, on_event=remove)
    assert result.best_config is not None and result.measured == 2 and cache.runs() == []


def test_a_cache_that_cannot_be_used_costs_no_tuning(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.warns(RuntimeWarning, match="cannot be used"):
        result = run_here(ResultCache(tmp_path / "file" / "results"))
    assert not result.cache_hit and result.journal is None
