"""The result cache: what its key covers, what it keeps, and that it never costs the run."""

from __future__ import annotations

import importlib
import linecache
import os
import sqlite3
import subprocess
import sys
import time
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
from cache_entries import events, key
from decorated import QUICK, doubled, run_cached, scale, workload
from processes import wait_until

import atune
from atune.errors import NoWinner, UsageError
from atune.frontends.api import cached_tune as cached
from atune.frontends.api.cached_tune import CachedWork
from atune.frontends.api.tuner import discover
from atune.journal.events import (
    BenchmarkFailed,
    BenchmarkStarted,
    CandidateMeasured,
    CandidateProposed,
    Event,
    RunFinished,
    RunResumed,
    RunStarted,
)
from atune.journal.reader import read
from atune.journal.result import Result
from atune.journal.writer import line_of
from atune.model.candidate import config_key
from atune.model.device import DeviceInfo, Target
from atune.workers.storage.result_cache import ResultCache
from atune.workers.storage.result_key import ResultKey, read_exported, result_key
from atune.workers.system.locks import TuningLock
from atune.workload.fingerprint import fingerprint
from atune.workload.packing import LazyCallback
from atune.workload.workload import Workload

ROOT = Path(__file__).parents[2]


@pytest.fixture
def cache(tmp_path: Path) -> ResultCache:
    return ResultCache(tmp_path / "results")


def test_a_result_comes_back_with_every_record(cache: ResultCache) -> None:
    assert cache.find(key()) is None
    assert not cache.path.exists()  # looking makes nothing
    cache.put(key(), events(3.0, 1.0, None))
    found = cache.find(key())
    assert found is not None and found.cache_hit
    assert found.best_config == {"block": 32} and found.latency_ms == 1.0
    assert [record.status for record in found.records] == ["measured", "measured", "failed"]
    assert cache.find(key(problem={"M": 128})) is None


FOR_PEOPLE = ("kernel", "source", "tuned_for")


@pytest.mark.parametrize("part", FOR_PEOPLE)
def test_what_other_parts_imply_does_not_count(part: str) -> None:
    assert key(**{part: "another"}).text == key().text


@pytest.mark.parametrize("part", [n for n in ResultKey.__struct_fields__ if n not in FOR_PEOPLE])
def test_every_part_of_the_key_counts(cache: ResultCache, part: str) -> None:
    other = {"problem": {"M": 65}, "versions": {"atune": "2"}, "measuring": {"n_repeat": 4}, "search": {}}
    changed = key(**{part: other.get(part, "another")})
    assert changed.text != key().text
    assert (changed.work == key().work) == (part in ("search", "space"))


def test_a_run_without_end_leaves_its_measurements_and_no_result(cache: ResultCache) -> None:
    cache.put(key(), events(3.0, None, finished=False))
    assert cache.find(key()) is None and cache.entries() == []
    known = cache.known(key(space="another"), [{"block": 16}, {"block": 32}, {"block": 64}])
    assert sorted(k.config["block"] for k in known.values()) == [16, 32]
    assert cache.known(key(measuring={"n_repeat": 9}), [{"block": 16}]) == {}


@pytest.mark.parametrize(
    ("budget", "reason", "why"),
    [
        ({}, "stopped", "it was stopped"),
        ({}, "budget", "it was continued with a smaller budget"),
        ({"candidates": 3}, "budget", "it was continued with a smaller budget"),
        ({"candidates": 2}, "budget", ""),
        ({}, "exhausted", ""),
    ],
)
def test_a_run_that_tried_less_than_its_header_asks_for_has_no_result(
    cache: ResultCache, budget: dict[str, int], reason: str, why: str
) -> None:
    """It was stopped, or resumed with another budget, of which its header says nothing."""
    header, *others = events(3.0, 1.0, finished=False)
    assert isinstance(header, RunStarted)
    header = msgspec.structs.replace(header, total=9, settings={**header.settings, "budget": budget})
    ends = [
        RunResumed(seq=9, time=2.0, mono=9.0, part=1, versions={}),
        RunFinished(seq=10, time=3.0, mono=10.0, wall_s=1.0, reason=reason),
    ]
    assert cache.put_run([header, *others, *ends]) == why
    made = result_key(header)
    assert made is not None and (cache.find(made) is None) == bool(why)
    assert len(cache.known(made, [{"block": 16}, {"block": 32}])) == 2


def test_an_older_run_replaces_no_later_measurement(cache: ResultCache) -> None:
    """It may be imported after the later one."""
    cache.put(key(), [msgspec.structs.replace(event, time=9.0) for event in events(1.0)])
    cache.put(key(), events(5.0, 2.0))
    known = cache.known(key(), [{"block": 16}, {"block": 32}]).values()
    assert sorted(k.outcome.timing.latency_ms for k in known if isinstance(k.outcome, CandidateMeasured)) == [1.0, 2.0]


def test_a_failure_that_may_pass_is_not_kept(cache: ResultCache) -> None:
    kept = events(1.0, None)
    lost = [msgspec.structs.replace(e, kind="timeout") if isinstance(e, BenchmarkFailed) else e for e in kept]
    cache.put(key(), lost)
    assert [k.config for k in cache.known(key(), [{"block": 16}, {"block": 32}]).values()] == [{"block": 16}]


def test_a_damaged_database_is_moved_aside(cache: ResultCache) -> None:
    """It costs a warning and not the run, and nothing of it is thrown away."""
    cache.put(key(), events(1.0))
    cache.path.write_bytes(b"no database at all " * 500)
    with pytest.warns(RuntimeWarning, match="was damaged"):
        assert cache.find(key()) is None
    assert len(list(cache.folder.glob("damaged-*.sqlite3"))) == 1
    cache.put(key(), events(2.0))
    found = cache.find(key())
    assert found is not None and found.latency_ms == 2.0


@pytest.mark.parametrize("where", [0.0, 0.5, 0.9])
def test_a_half_written_database_costs_no_run(cache: ResultCache, where: float) -> None:
    """Cut anywhere, or with a page overwritten: what can be read is right, and the cache works afterwards."""
    for i in range(40):
        cache.put(key(problem={"M": i}), events(*[1.0 + i] * 30))
    data = cache.path.read_bytes()
    cut = max(100, int(len(data) * where))
    cache.path.write_bytes(data[:cut])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        for i in range(40):
            found = cache.find(key(problem={"M": i}))
            assert found is None or found.latency_ms == 1.0 + i
        cache.put(key(), events(7.0))
        cache.put(key(), events(7.0))  # whatever the first attempt found
    found = cache.find(key())
    assert found is not None and found.latency_ms == 7.0


def test_a_damaged_entry_is_left_out(cache: ResultCache) -> None:
    cache.put(key(), events(1.0))
    with sqlite3.connect(cache.path) as db:
        db.execute("UPDATE results SET events = x'00'")
    db.close()
    with pytest.warns(RuntimeWarning, match="damaged and left out"):
        assert cache.find(key()) is None
    assert cache.entries() == []


def test_a_cache_of_a_newer_atune_is_left_alone(cache: ResultCache) -> None:
    cache.put(key(), events(1.0))
    with sqlite3.connect(cache.path) as db:
        db.execute("PRAGMA user_version = 99")
    db.close()
    before = cache.path.read_bytes()
    with pytest.warns(RuntimeWarning, match="newer atune"):
        assert cache.find(key()) is None
    assert cache.path.read_bytes() == before


def test_a_folder_that_cannot_be_written_costs_a_warning(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    cache = ResultCache(tmp_path / "file" / "results")
    assert cache.find(key()) is None
    with pytest.warns(RuntimeWarning, match="cannot be used"):
        cache.put(key(), events(1.0))


def test_axes_and_arguments_keep_their_order(cache: ResultCache) -> None:
    config, problem = {"bm": 1, "bn": 2, "bk": 3}, {"M": 1, "N": 2, "K": 3}
    run = [
        msgspec.structs.replace(event, config=config, key=config_key(config))
        if isinstance(event, CandidateProposed)
        else event
        for event in events(1.0)
    ]
    cache.put(key(problem=problem), run)
    for entry in (*cache.entries(), *read_exported(cache.export())):
        assert list(entry.config) == list(config) and list(entry.parts.problem) == list(problem)
    assert cache.clear(problem=dict(reversed(problem.items()))) == 1


def test_export(cache: ResultCache) -> None:
    cache.put(key(), events(3.0, 1.0))
    cache.put(key(kernel="softmax", fingerprint="g"), events(2.0))
    data = cache.export(kernel="gemm")
    assert data == cache.export(kernel="gemm")
    [entry] = read_exported(data)
    assert (entry.parts, entry.config, entry.latency_ms) == (key(), {"block": 32}, 1.0)
    assert cache.find_entry(key()) == entry
    for bad in (b"", b"[]", b'{"format": "else", "schema": 1, "entries": []}', b"\xff\xfe"):
        with pytest.raises(UsageError, match="not a file of exported results"):
            read_exported(bad)
    with pytest.raises(UsageError, match="update atune"):
        read_exported(data.replace(b'"schema": 1', b'"schema": 9'))


def test_clear(cache: ResultCache) -> None:
    for kernel, size in (("gemm", 1), ("gemm", 2), ("softmax", 1)):
        cache.put(key(kernel=kernel, source=kernel, fingerprint=kernel, problem={"M": size}), events(1.0))
    assert cache.clear(chosen=lambda entry: entry.parts.source == "gemm", problem={"M": 2}) == 1
    assert cache.clear(kernel="softmax") == 1
    [left] = cache.entries()
    assert left.parts.problem == {"M": 1}
    assert cache.known(left.parts, [{"block": 16}])
    assert cache.clear(key=left.key[:8]) == 1
    assert cache.known(left.parts, [{"block": 16}]) == {}
    cache.put(key(), events(1.0))
    assert cache.clear() == 1 and cache.entries() == []


WRITER = """
import sys
sys.path.insert(0, "tests")
from cache_entries import events, key
from atune.workers.storage.result_cache import ResultCache
cache = ResultCache(sys.argv[1])
for i in range(10):
    cache.put(key(problem={"M": [int(sys.argv[2]), i]}), events(1.0))
"""


def test_many_processes_write_at_once(cache: ResultCache) -> None:
    command = [sys.executable, "-W", "error", "-c", WRITER, str(cache.folder)]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    writers = [subprocess.Popen([*command, str(i)], cwd=ROOT, env=env) for i in range(3)]
    assert [writer.wait(100) for writer in writers] == [0, 0, 0]
    assert len(cache.entries()) == 30


def test_the_lock_is_one_holders_and_ends_with_it(tmp_path: Path) -> None:
    first, second = TuningLock(tmp_path / "a" / "x.lock"), TuningLock(tmp_path / "a" / "x.lock")
    assert first.acquire() and not second.acquire()
    first.release()
    assert second.acquire()
    second.release()
    assert list((tmp_path / "a").iterdir()) == []


# What the key covers


def made(value: Any) -> Any:
    def kernel(n: int, block: int = 16) -> Any:
        return value, scale(n, 2, block)

    return kernel


def times(factor: int) -> Any:
    return lambda x: x * factor


def code_of(kernel: Any, **options: Any) -> str:
    return fingerprint(Workload(kernel, atune.Space(block=[16]), arguments={"n": 64}, **options), problem=False)


@pytest.mark.parametrize("case", ["partial", "shape", "dtype", "torch dtype", "object"])
def test_the_closure_counts(case: str) -> None:
    import torch

    class Plan:
        def __init__(self, width: int) -> None:
            self.width = width

    one, other = {
        "partial": (partial(max, 1), partial(max, 2)),
        "shape": (torch.zeros(2, 3), torch.zeros(3, 2)),
        "dtype": (torch.zeros(2), torch.zeros(2, dtype=torch.float16)),
        "torch dtype": (torch.float16, torch.bfloat16),
        "object": (Plan(1), Plan(2)),
    }[case]
    assert code_of(made(one)) != code_of(made(other))
    assert code_of(made(one)) == code_of(made(one))


def test_functions_of_the_libraries_are_told_apart_by_name() -> None:
    """They are not looked into: their versions stand in the key."""
    import tilelang.language as T
    from torch.nn.functional import multi_head_attention_forward, softmax

    for value in (softmax, torch_tensor_class(), T.gemm, T.float16, multi_head_attention_forward):
        started = time.perf_counter()
        assert code_of(made(value)) == code_of(made(value))
        assert time.perf_counter() - started < 1.0
    assert code_of(made(softmax)) != code_of(made(multi_head_attention_forward))
    assert code_of(made(T.float16)) != code_of(made(T.float32))
    assert code_of(scale, reference=softmax) != code_of(scale, reference=multi_head_attention_forward)


def torch_tensor_class() -> Any:
    import torch

    return torch.Tensor


def test_classes_count_by_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An object's methods are a part of it, and the class itself may be used."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    keys = []
    for width in ("1", "1", "2 * 2"):
        sys.modules.pop("plans", None)
        (tmp_path / "plans.py").write_text(f"class Plan:\n    def width(self):\n        return {width}\n")
        importlib.invalidate_caches()
        linecache.checkcache()
        plans = importlib.import_module("plans")
        keys.append((code_of(made(plans.Plan())), code_of(made(plans.Plan))))
    assert keys[0] == keys[1]
    assert keys[0][0] != keys[2][0] and keys[0][1] != keys[2][1]


def test_callbacks_count_by_source_and_closure() -> None:
    import torch

    assert code_of(scale, check=times(2)) != code_of(scale, check=times(3))
    assert code_of(scale, reference=abs) != code_of(scale, reference=min)
    assert code_of(scale, reference=torch.neg) != code_of(scale, reference=torch.abs)
    assert code_of(scale, reference=LazyCallback(times(2))) == code_of(scale, reference=times(2))
    assert code_of(scale, reference=LazyCallback(torch.neg)) != code_of(scale, reference=LazyCallback(torch.abs))
    plain = Workload(scale, atune.Space(block=[16]), arguments={"n": 64})
    larger = Workload(scale, atune.Space(block=[16]), arguments={"n": 128})
    assert fingerprint(plain) != fingerprint(larger)
    assert fingerprint(plain, problem=False) == fingerprint(larger, problem=False)


def test_a_kernel_that_was_called_keeps_its_key() -> None:
    """tilelang writes its own form of `out_idx` into a kernel that it compiles."""
    import decorated

    before = CachedWork(workload(kernel=decorated.scale_jit), target="c").key.text
    decorated.scale_jit(64, block=16)
    assert decorated.scale_jit.out_idx == [1]
    assert CachedWork(workload(kernel=decorated.scale_jit), target="c").key.text == before


def test_the_key_holds_space_settings_and_problem() -> None:
    plain = CachedWork(workload(), target="c").key
    assert plain.device and plain.versions["tilelang"] and plain.target == "c"
    assert CachedWork(workload(), target="c", benchmark=QUICK).key.work != plain.work
    assert CachedWork(workload(atune.Space(factor=[2], block=[16])), target="c").key.work == plain.work
    assert CachedWork(workload(atune.Space(factor=[2], block=[16])), target="c").key.text != plain.text
    assert CachedWork(workload(), target="c", budget=2).key.text != plain.text
    bucket = workload()
    bucket.key = {"bucket": 8}
    found = CachedWork(bucket, target="c").key
    assert found.problem == {"bucket": 8} and found.tuned_for == {"n": 256}


# With the engine


def run_here(cache: ResultCache, space: atune.Space | None = None, on_event: Any = None, **options: Any) -> Result:
    work = CachedWork(workload(space), target="c", benchmark=QUICK, on_event=on_event)
    return run_cached(work, cache, **options)


def test_a_second_tuning_is_a_look_up(cache: ResultCache, monkeypatch: pytest.MonkeyPatch) -> None:
    first = run_here(cache)
    assert not first.cache_hit and first.best_config is not None and first.best_config["factor"] == 2
    with monkeypatch.context() as patch:
        patch.delattr(cached, "tune_apart")  # nothing may be tuned
        again = run_here(cache)
    assert again.cache_hit and again.best_config == first.best_config
    assert again.records == first.records
    import torch

    A = torch.randn(256)
    assert torch.equal(again.kernel(A), doubled(A))
    assert not list((cache.folder / "running").iterdir())
    assert not run_here(cache, refresh=True).cache_hit


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
        assert not list((cache.folder / "running").iterdir())
        assert "for example candidate" in str(raised.value) and "atune show" not in str(raised.value), "it is removed"
        assert raised.value.result.journal is None
        resumed = next((i for i, e in enumerate(seen) if isinstance(e, RunResumed)), 0)
        assert sum(isinstance(e, BenchmarkFailed) for e in seen[resumed:]) == (2 if attempt == 1 else 0)


def test_a_journal_of_the_cache_that_is_damaged_costs_nothing(cache: ResultCache) -> None:
    work = CachedWork(workload(), target="c", benchmark=QUICK)
    journal = cache.folder / "running" / f"{work.key.text}.jsonl"
    journal.parent.mkdir(parents=True)
    journal.write_bytes(b"rubbish\n" + b"".join(map(line_of, events(1.0))))
    result = run_here(cache)
    assert result.measured == 2 and not result.cache_hit
    assert run_here(cache).cache_hit


def standing_in(calls: list[dict[str, Any]]) -> Any:
    """Return what can stand for `tune`: one measurement, and its options in `calls`."""

    async def tune(workload: Any, **options: Any) -> Result:
        calls.append(options)
        for event in events(1.0):
            options["on_event"](event)
        return Result.from_events(events(1.0))

    return tune


TUNER = """
import sys
sys.path.insert(0, "tests")
from decorated import QUICK, run_cached, workload
from atune.frontends.api.cached_tune import CachedWork
from atune.workers.storage.result_cache import ResultCache
result = run_cached(CachedWork(workload(), target="c", benchmark=QUICK), ResultCache(sys.argv[1]))
print(result.cache_hit, result.best_config["factor"])
"""


def test_two_processes_tune_once(cache: ResultCache) -> None:
    """One tunes; this one waits and has a hit."""
    command = [sys.executable, "-c", TUNER, str(cache.folder)]
    with subprocess.Popen(
        command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, stdout=subprocess.PIPE
    ) as other:
        wait_until(lambda: other.poll() is not None or any((cache.folder / "running").glob("*.lock")), 100, "its turn")
        result = run_here(cache)
        assert other.communicate(timeout=150)[0] == b"False 2\n"
    assert result.cache_hit and result.best_config == {"factor": 2, "block": result.best_config["block"]}


KILLED = """
import os, sys
sys.path.insert(0, "tests")
from decorated import QUICK, run_cached, workload
from atune.frontends.api.cached_tune import CachedWork
from atune.journal.events import CandidateMeasured
from atune.workers.storage.result_cache import ResultCache

def die(event):
    if isinstance(event, CandidateMeasured):
        os.kill(os.getpid(), 9)

run_cached(CachedWork(workload(), target="c", benchmark=QUICK, on_event=die), ResultCache(sys.argv[1]))
"""


def test_a_process_that_dies_while_it_tunes_loses_its_turn_and_nothing_measured(cache: ResultCache) -> None:
    """The next one resumes the journal that the cache kept."""
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    died = subprocess.run([sys.executable, "-c", KILLED, str(cache.folder)], cwd=ROOT, env=env, timeout=100)
    assert died.returncode == -9
    assert len(list((cache.folder / "running").iterdir())) == 2  # its lock, which is nobody's, and its journal
    [journal] = (cache.folder / "running").glob("*.jsonl")
    done = {e.index for e in read(journal) if isinstance(e, (CandidateMeasured, BenchmarkFailed))}
    seen: list[Event] = []
    result = run_here(cache, on_event=seen.append)
    assert not result.cache_hit and result.measured == 2
    resumed = next(i for i, e in enumerate(seen) if isinstance(e, RunResumed))
    outcomes = {e.index for e in seen[resumed:] if isinstance(e, (CandidateMeasured, BenchmarkFailed))}
    assert done and not done & outcomes
    assert not list((cache.folder / "running").iterdir())


def test_going_on_while_another_tunes(cache: ResultCache, monkeypatch: pytest.MonkeyPatch) -> None:
    work = CachedWork(workload(), target="c", benchmark=QUICK)
    other = TuningLock(cache.folder / "running" / f"{work.key.text}.lock")
    assert other.acquire()
    calls: list[dict[str, Any]] = []
    monkeypatch.setattr(cached, "tune_apart", standing_in(calls))
    result = run_here(cache, concurrent="tune")
    assert not result.cache_hit and "journal" not in calls[0] and not calls[0]["taken_up"]
    other.release()
    assert run_here(cache).cache_hit
    assert len(calls) == 1
    run_here(cache, refresh=True)
    assert calls[1]["journal"].parent.name == "running" and calls[1]["taken_up"]


def test_journals_that_nobody_goes_on_with_are_removed(cache: ResultCache, monkeypatch: pytest.MonkeyPatch) -> None:
    running = cache.folder / "running"
    running.mkdir(parents=True)
    for name, days in (("old", 30), ("young", 1)):
        (running / f"{name}.jsonl").write_text("")
        os.utime(running / f"{name}.jsonl", (time.time() - days * 86400,) * 2)
    monkeypatch.setattr(cached, "tune_apart", standing_in([]))
    run_here(cache)
    assert [path.name for path in running.iterdir()] == ["young.jsonl"]


def test_a_cache_that_cannot_be_used_costs_no_tuning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    calls: list[dict[str, Any]] = []
    monkeypatch.setattr(cached, "tune_apart", standing_in(calls))
    with pytest.warns(RuntimeWarning, match="cannot be used"):
        assert not run_here(ResultCache(tmp_path / "file" / "results")).cache_hit
    assert "journal" not in calls[0]


def test_devices_are_asked_for_once() -> None:
    target, [device] = discover("c", "all")
    assert target == Target("c") and isinstance(device, DeviceInfo) and device.id == "cpu"
    assert discover("c", ("all",)) == (target, [device])
