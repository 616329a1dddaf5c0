"""Runs that begin with what was best elsewhere: asked the same after a resume, and refused what is of no use."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from cache_entries import events, key_of, put, with_configs
from event_streams import Stream, write
from fake_runs import cut_before, proposed

from atune import Tuner, resume, tune
from atune.engine.settings import KnownResult
from atune.errors import CacheMiss, UsageError
from atune.frontends.warm_start import adviser
from atune.journal.events import RunFinished, Warned
from atune.journal.reader import read
from atune.journal.result import Result
from atune.reporting.summary import summary_text
from atune.testing import FakeMachine, Script
from atune.workers.result_cache import ResultCache

pytestmark = pytest.mark.anyio

N = 40
BEST_THERE = [21, 20, 22, 19]


def there(config: dict[str, Any]) -> float:
    return 1.0 + abs(config["x"] - 20.9)


async def recorded(path: Path, configs: int = N, **script: Any) -> Path:
    await tune(machine=FakeMachine(configs, Script(**{"latency_ms": there, **script})), journal=path)
    return path


@pytest.mark.parametrize("strategy", ["exhaustive", "random", "bayesian"])
async def test_the_best_elsewhere_are_tried_first(tmp_path: Path, strategy: str) -> None:
    warm = await recorded(tmp_path / "there")
    result = await tune(machine=FakeMachine(N), strategy=strategy, warm=warm, budget=32, journal=tmp_path / "here")
    asked = proposed(tmp_path / "here")
    assert asked[:4] == BEST_THERE and len(set(asked)) == 32
    assert result.header is not None
    [advice] = result.header.advice
    assert (advice.source, [config["x"] for config in advice.first]) == (str(warm), BEST_THERE)
    await tune(machine=FakeMachine(N), warm=warm, budget=4, journal=tmp_path / "small")  # half of it at most
    asked = proposed(tmp_path / "small")
    assert asked[:2] == BEST_THERE[:2] and not set(asked[2:]) & set(BEST_THERE)


@pytest.mark.parametrize("strategy", ["exhaustive", "bayesian"])
async def test_a_resumed_run_asks_the_same_without_the_other_journal(tmp_path: Path, strategy: str) -> None:
    """It is cut after its second proposal: what follows of the first eight depends on the advice alone."""
    warm, whole = await recorded(tmp_path / "there"), tmp_path / "whole"
    await tune(machine=FakeMachine(N), strategy=strategy, warm=warm, budget=32, journal=whole)
    warm.unlink()
    part = cut_before(whole, 2, tmp_path / "part")
    await resume(part, machine=FakeMachine(N))
    assert proposed(part)[:8] == proposed(whole)[:8] and len(set(proposed(part))) == 32


async def test_results_and_lists_are_taken_in_turn(tmp_path: Path) -> None:
    one = await tune(machine=FakeMachine(N, Script(latency_ms=lambda c: 10.0 + abs(c["x"] - 10.1))))
    other = await recorded(tmp_path / "there", latency_ms=lambda c: 20.0 + 2 * abs(c["x"] - 14.1))
    options: dict[str, Any] = {"warm": [one, other], "budget": 18}
    result = await tune(machine=FakeMachine(N), strategy="random", **options, journal=tmp_path / "here")
    assert result.header is not None and [a.source for a in result.header.advice] == ["result", str(other)]
    assert proposed(tmp_path / "here")[:8] == [10, 14, 11, 15, 9, 13, 12, 16]


async def test_a_journal_goes_on_with_its_own_advice(tmp_path: Path) -> None:
    """The same command again works without the other journal's content, and one that began without says so."""
    warm, journal = await recorded(tmp_path / "there"), tmp_path / "here"
    await tune(machine=FakeMachine(N), warm=warm, budget=3, strategy="exhaustive", journal=journal)
    warm.write_text("gone")
    result = await tune(machine=FakeMachine(N), warm=warm, budget=9, journal=journal)
    assert not result.warnings and proposed(journal)[:1] == BEST_THERE[:1]
    await tune(machine=FakeMachine(N), budget=3, strategy="exhaustive", journal=tmp_path / "cold")
    result = await tune(machine=FakeMachine(N), warm=warm, budget=9, journal=tmp_path / "cold")
    assert [e.message for e in read(tmp_path / "cold") if isinstance(e, Warned)] == [
        "warm is ignored: the run began without advice, and continues without it"
    ]


def toy(path: Path) -> Path:
    """Write a journal of another kernel, called toy."""
    return write(path, Stream().ready().candidate(0, 1.0, x=0).finished().events)


async def nothing_measured(path: Path) -> Path:
    with pytest.raises(Exception, match="no candidate worked"):
        await recorded(path, 2, fails={0: "compile", 1: "compile"})
    return path


async def test_what_is_of_no_use_is_refused_in_one_message(tmp_path: Path) -> None:
    journal = tmp_path / "here"
    other = FakeMachine([{"y": 1}])
    await tune(machine=other, journal=tmp_path / "elsewhere")
    for warm, message in (
        (toy(tmp_path / "toy"), "is for the kernel 'toy', but this kernel is 'fake'. Give journals of this kernel"),
        (tmp_path / "elsewhere", "this space of 40 has none of the 1 configurations that were measured there"),
        (await nothing_measured(tmp_path / "failed"), "none of the 0 configurations that were measured there"),
        (tmp_path / "none", "there is no such file"),
        (3, "give a journal's path, a TuneResult, 'cache', or a list"),
        ([None], "give a journal's path, a TuneResult, 'cache', or a list"),
    ):
        with pytest.raises(UsageError, match=message):
            await tune(machine=FakeMachine(N), warm=warm, journal=journal)  # type: ignore[arg-type]
        assert not journal.exists()


async def test_a_kernel_is_the_same_by_its_source_or_by_its_name(tmp_path: Path) -> None:
    spec = msgspec.structs.replace(await FakeMachine(N).describe(), kernel="k")
    for workload, kernel, remarks in (("renamed", "k", 0), ("fake", "", 0), ("fake", "edited", 1), ("renamed", "", -1)):
        path = put(ResultCache(tmp_path), events_of_fake(workload=workload, kernel=kernel))
        advise = adviser(path)
        assert advise is not None
        if remarks < 0:
            with pytest.raises(UsageError, match="for the kernel 'renamed'"):
                advise(spec, [])
            continue
        [advice], said = advise(spec, [])
        assert advice.first == ({"x": 1}, {"x": 0}) and len(said) == remarks
        assert all("has changed since" in remark for remark in said)


def events_of_fake(*latencies: float, **header: Any) -> list[Any]:
    """Events of a run of the fake machine's kernel, with the latencies of its first configurations."""
    found = events(*(latencies or (2.0, 1.0)), **{"workload": "fake", **header})
    return with_configs(found, [{"x": index} for index in range(len(found))])


async def test_the_nearest_come_first_those_of_this_device_before_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ATUNE_CACHE_DIR", str(tmp_path / "cache"))
    spec, [device] = await FakeMachine(N).describe(), (await FakeMachine(N).discover())[1]
    runs = {
        size: events_of_fake(models=(model,), arguments={"M": size}, problem={"M": size})
        for size, model in ((64, device.name), (2048, device.name), (1024, "another"))
    }
    for run in runs.values():
        put(ResultCache(), run)
    named = {f"cache {key_of(run).text}": size for size, run in runs.items()}
    advise = adviser("cache")
    assert advise is not None
    advice, _ = advise(msgspec.structs.replace(spec, arguments={"M": 1024}), [device])
    assert [named[each.source] for each in advice] == [2048, 64, 1024]


async def test_the_result_cache_gives_advice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATUNE_CACHE_DIR", str(tmp_path / "cache"))
    result = await tune(machine=FakeMachine(N), warm="cache", budget=3)
    assert "the result cache has nothing for this kernel" in result.warnings[-1]
    ResultCache().add(await recorded(tmp_path / "there"))
    put(ResultCache(), events(1.0, workload="other", kernel="other", code="other"))
    await tune(machine=FakeMachine(N), warm="cache", budget=32, journal=tmp_path / "here")
    assert proposed(tmp_path / "here")[:4] == BEST_THERE
    found = Result.from_events(read(tmp_path / "here"))
    assert found.header is not None and [a.source[:6] for a in found.header.advice] == ["cache "]


async def test_what_the_cache_has_of_the_same_work_is_returned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is compiled or measured for it, and the new journal has what the earlier run recorded."""
    monkeypatch.setenv("ATUNE_CACHE_DIR", str(tmp_path / "cache"))
    journal, again = await recorded(tmp_path / "there"), tmp_path / "again"
    ResultCache().add(journal)
    found = await tune(machine=FakeMachine(N), cached=True, journal=again)
    assert found.cache_hit and found.best_config == {"x": 21} and read(again) == read(journal)
    assert "the result comes from the result cache; nothing was measured" in summary_text(found)
    assert (await tune(machine=FakeMachine(N), cached=True, on_miss="error")).best_config == {"x": 21}
    with pytest.raises(
        CacheMiss, match="the result cache has no result for this version of fake: drop on_miss='error'"
    ):
        await tune(machine=FakeMachine(N), cached=True, on_miss="error", budget=5, journal=tmp_path / "missed")
    assert not (tmp_path / "missed").exists()
    for cached in (None, False):
        with pytest.raises(UsageError, match="needs cached=True"):
            await tune(machine=FakeMachine(N), cached=cached, on_miss="error")
    measured = await tune(machine=FakeMachine(N), journal=tmp_path / "anew")
    assert not measured.cache_hit and proposed(tmp_path / "anew")[0] == 0


@pytest.mark.parametrize("differs", ["budget", "space"])
async def test_the_best_winner_of_the_same_work_is_tried_first_and_not_the_newest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, differs: str
) -> None:
    """The work is the same with another budget, and with another space that has the winner."""
    monkeypatch.setenv("ATUNE_CACHE_DIR", str(tmp_path / "cache"))
    ResultCache().add(await recorded(tmp_path / "there"))
    ResultCache().add(await recorded(tmp_path / "newer", 35, latency_ms=lambda config: 90.0 - config["x"]))
    options, configs = ({"budget": 8}, N) if differs == "budget" else ({}, 30)
    result = await tune(machine=FakeMachine(configs), cached=True, journal=tmp_path / "here", **options)
    assert not result.cache_hit and proposed(tmp_path / "here")[0] == 21
    small = await tune(machine=FakeMachine(10), cached=True)  # its space lacks the winner
    assert small.header is not None and not small.header.advice


@pytest.mark.parametrize(("found", "reason"), [(KnownResult(), "exhausted"), (None, "stopped")])
async def test_a_wait_is_said_once_and_takes_no_time(found: Any, reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    looks = [found, None, None]
    clock = SimpleNamespace(monotonic=lambda: time.monotonic() - 100.0 * len(looks), time=time.time)
    monkeypatch.setattr("atune.engine.run_state.time", clock)

    def recall(*_: Any) -> Any:
        if found is None and len(looks) == 1:
            tuner.stop()
        return looks.pop()

    monkeypatch.setattr("atune.frontends.tuner.recaller", lambda *_, **__: recall)
    tuner = Tuner(machine=FakeMachine(4), budget="60s")
    with pytest.warns(RuntimeWarning, match="another run is tuning fake; this run waits") as told:
        async with tuner:
            seen = [event async for event in tuner.events()]
    assert isinstance(seen[-1], RunFinished) and (seen[-1].reason, len(told)) == (reason, 1) and seen[-1].wall_s < 60
