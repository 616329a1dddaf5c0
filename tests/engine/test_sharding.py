"""Shards: disjoint parts of a space for machines that share nothing, and their journals merged."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

from atune import Space, resume, tune
from atune.cli.main import main
from atune.errors import JournalError, UsageError
from atune.journal.events import CandidateProposed, RunStarted
from atune.journal.merge import merge
from atune.journal.reader import read
from atune.journal.replay import replay
from atune.model.permutation import Permutation
from atune.model.shard import Shard, Sharding
from atune.testing import FakeMachine, Script

pytestmark = pytest.mark.anyio

N = 90
LARGE = Space(a=range(1000), b=range(1000))


def fake(space: Any = N, **script: Any) -> FakeMachine:
    """Return a machine whose fastest candidate is number 33 of the whole space."""
    return FakeMachine(space, Script(**{"latency_ms": lambda c: 1.0 + abs(c.get("x", 0) - 33), **script}), workers=1)


async def tuned(folder: Path, count: int, **options: Any) -> list[Path]:
    """Tune each shard of `count` as a run of its own, and return the journals."""
    paths = [folder / f"shard-{number}" for number in range(1, count + 1)]
    for number, path in enumerate(paths, 1):
        await tune(machine=fake(), shard=f"{number}/{count}", journal=path, **options)
    return paths


def configs(journal: Path) -> list[int]:
    return [e.config["x"] for e in read(journal) if isinstance(e, CandidateProposed) and not e.surveyed]


@pytest.mark.parametrize(("total", "count"), [(1, 1), (7, 3), (90, 4), (288, 4), (1000, 7), (5, 8)])
@pytest.mark.parametrize("large", [False, True])
def test_shards_are_disjoint_balanced_and_together_the_whole(total: int, count: int, large: bool) -> None:
    shards = [Sharding(Shard(number, count), total, "", large) for number in range(1, count + 1)]
    members = [[one.whole(index) for index in range(one.size)] for one in shards]
    assert sorted(itertools.chain.from_iterable(members)) == list(range(total))
    assert max(map(len, members)) - min(map(len, members)) <= 1
    for one, indices in zip(shards, members, strict=True):
        assert [one.own(index) for index in indices] == list(range(one.size))
        assert not any(other.own(index) is not None for other in shards if other is not one for index in indices)


@pytest.mark.parametrize("size", [1, 2, 10, 97, 1000, 10**9])
def test_a_permutation_knows_the_position_of_each_number(size: int) -> None:
    order = Permutation(size, 0)
    for position in range(0, size, max(1, size // 50)):
        assert order.position(order[position]) == position


@pytest.mark.parametrize("text", ["", "2", "0/4", "5/4", "2/0", "-1/4", "1/2/3", "a/b", "²/4", 2])
def test_a_text_that_is_no_shard_is_refused(text: Any) -> None:
    with pytest.raises(UsageError, match="such as 2/4"):
        Shard.parse(text)


async def test_every_shard_has_a_share_of_each_axis() -> None:
    """Neighbours in the space are dealt to different shards, so no shard has one value of an axis alone."""
    for number in range(1, 5):
        members = Sharding(Shard(number, 4), 256, "").members
        assert all({index // step % 4 for index in members} == {0, 1, 2, 3} for step in (1, 4, 16, 64))


@pytest.mark.parametrize("strategy", [None, "random", "forest"])
async def test_merged_shards_are_the_whole_space(tmp_path: Path, strategy: str | None) -> None:
    paths = await tuned(tmp_path, 4, strategy=strategy)
    tried = [configs(path) for path in paths]
    assert sorted(itertools.chain.from_iterable(tried)) == list(range(N))
    merged = merge(paths, tmp_path / "merged")
    assert (merged.best_config, merged.total, merged.remaining) == ({"x": 33}, N, 0)
    assert all(record.config == {"x": record.index} for record in merged.records)
    assert not any("several outcomes" in text for text in merged.warnings)
    machine = fake()
    assert (await resume(tmp_path / "merged", machine=machine)).best_config == {"x": 33}
    assert not machine.lowered


async def test_a_budget_is_of_the_shard(tmp_path: Path) -> None:
    [path, *_] = await tuned(tmp_path, 3, budget="50%", strategy="random", seed=4)
    assert len(configs(path)) == 15 and replay(path).total == 30


async def test_a_resumed_shard_goes_on_as_the_uninterrupted_one(tmp_path: Path) -> None:
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    await tune(machine=fake(), shard="2/3", journal=whole, strategy="random")
    await tune(machine=fake(), shard="2/3", journal=cut, strategy="random", budget=11)
    await resume(cut, machine=fake(), budget=30)
    assert configs(cut) == configs(whole)


async def test_a_journal_of_one_shard_refuses_another(tmp_path: Path) -> None:
    [path] = (await tuned(tmp_path, 3))[:1]
    before = path.read_bytes()
    for shard in ("2/3", "1/4"):
        with pytest.raises(JournalError, match="of shard 1/3, and not of shard"):
            await tune(machine=fake(), shard=shard, journal=path)
    await tune(machine=fake(), journal=tmp_path / "all", budget=3)
    with pytest.raises(JournalError, match="of the whole space, and not of shard 1/3"):
        await tune(machine=fake(), shard="1/3", journal=tmp_path / "all")
    with pytest.raises(JournalError, match="shard 1/3 of another space"):
        await tune(machine=fake(N + 1), journal=path)
    assert path.read_bytes() == before


async def test_a_shard_without_candidates_is_refused() -> None:
    with pytest.raises(UsageError, match="shard 9/9 is empty, as the space has 8 candidates"):
        await tune(machine=fake(8), shard="9/9")


@pytest.mark.parametrize("strategy", ["random", "forest"])
async def test_shards_of_a_large_space_are_merged_and_go_on(tmp_path: Path, strategy: str) -> None:
    paths = [tmp_path / "1", tmp_path / "2"]
    for number, path in enumerate(paths, 1):
        options: dict[str, Any] = {"strategy": strategy, "shard": f"{number}/2", "journal": path}
        await tune(machine=fake(LARGE), budget=20, **options)
        assert (await resume(path, machine=fake(LARGE), budget=25)).total == 500_000
    merged = merge(paths, tmp_path / "merged")
    assert (merged.measured, merged.total) == (50, 1_000_000)
    assert all(r.index == r.config["a"] * 1000 + r.config["b"] for r in merged.records)
    assert (await resume(tmp_path / "merged", machine=fake(LARGE), budget=55)).measured == 55


async def test_the_whole_goes_on_where_a_shard_is_missing(tmp_path: Path) -> None:
    """A machine that never came back costs its shard, which a run of the merged journal tries."""
    paths = await tuned(tmp_path, 4)
    lost = set(configs(paths.pop(1)))
    merge(paths, tmp_path / "merged")
    machine = fake()
    result = await resume(tmp_path / "merged", machine=machine)
    assert {record.config["x"] for record in result.records} == set(range(N))
    finalists = {33, 34, 35}  # whose libraries the final compiles again
    assert lost <= set(machine.lowered) <= lost | finalists and len(configs(tmp_path / "merged")) == N


async def test_default_and_header_of_merged_shards_are_the_whole_spaces(tmp_path: Path) -> None:
    paths = [tmp_path / "1", tmp_path / "2"]
    for number, path in enumerate(paths, 1):
        machine = FakeMachine(N, Script(), default=7)
        await tune(machine=machine, shard=f"{number}/2", journal=path)
    await tune(machine=FakeMachine(N, Script(), default=7), journal=tmp_path / "all", budget=1)
    for order in (paths, paths[::-1]):
        path = tmp_path / f"merged-{order[0].name}"
        merge(order, path)
        merged, whole = (next(iter(read(journal))) for journal in (path, tmp_path / "all"))
        assert isinstance(merged, RunStarted) and isinstance(whole, RunStarted)
        assert (merged.space, merged.total, merged.default) == (whole.space, whole.total, 7)
        assert merged.shard is None


def test_the_command_line_refuses_what_is_no_shard(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tune", f"{__file__}:w", "--shard", "5/4"]) == 2
    assert "such as 2/4" in capsys.readouterr().err
    assert main(["tune", f"{__file__}:w", "--shard", "1/4", "--dry-run"]) == 2
