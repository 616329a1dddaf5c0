"""What a tuning would do, from a counted space, journals and the result cache. No worker is started here."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from cache_entries import events, key
from event_streams import Stream

from atune.api import dry_run as module
from atune.api.dry_run import dry_run, pace_of
from atune.errors import TargetError
from atune.journal.events import RunStarted
from atune.journal.writer import Journal
from atune.model.candidate import config_key
from atune.model.device import DeviceInfo, Target
from atune.model.settings import Budget
from atune.processes.messages import Discovery
from atune.storage.result_cache import ResultCache
from atune.workload.pickling import FileRef
from atune.workload.space_survey import SpaceSurvey

pytestmark = pytest.mark.anyio
SURVEY = SpaceSurvey(
    workload="toy", arguments={"N": 64}, fingerprints=("f" * 64, "old" * 20), prints=("f", "o"), points=12,
    looked_at=12, admitted=10, exact=True, keys=tuple(config_key({"block": i}) for i in range(10)),
)  # fmt: skip
REF = FileRef("/toy.py", "WORKLOAD")


@pytest.fixture(autouse=True)
def workers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., None]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def install(survey: SpaceSurvey = SURVEY, error: TargetError | None = None) -> None:
        async def counted(ref: FileRef) -> SpaceSurvey:
            return survey

        async def found(*asked: Any) -> Discovery:
            if error is not None:
                raise error
            return Discovery(Target("c"), (DeviceInfo("cpu", "CPU"),))

        monkeypatch.setattr(module, "survey_space", counted)
        monkeypatch.setattr(module, "discover", found)

    install()
    return install


def run_of(path: Path, candidates: int = 4, **header: Any) -> Path:
    """Write the journal of a run with so many outcomes, one every second."""
    stream = Stream(total=10, step_s=0.25)
    assert isinstance(stream.events[0], RunStarted)
    stream.events[0] = msgspec.structs.replace(stream.events[0], **header)
    for index in range(candidates):
        stream.candidate(index, 1.0 + index)
    stream.finished()
    path.parent.mkdir(parents=True, exist_ok=True)
    with Journal.create(path) as journal:
        for event in stream.events:
            journal.append(event)
    return path


async def test_without_anything_known_there_is_no_estimate() -> None:
    found = await dry_run(REF)
    assert (found.to_do, found.pace, found.seconds, found.begun, found.cached) == (10, None, None, None, ())
    assert found.devices == ("CPU",) and not found.impossible


async def test_a_journal_to_go_on_with_leaves_the_rest(tmp_path: Path) -> None:
    journal = run_of(tmp_path / "j.jsonl")
    found = await dry_run(REF, journal=str(journal))
    assert found.begun is not None and (found.begun.same, found.begun.done) == (True, 4)
    assert found.begun.outcomes == {"measured": 4, "failed": 0, "pruned": 0, "duplicates": 0}
    assert found.to_do == 6 and found.pace is not None and found.pace.same
    assert found.seconds == pytest.approx(found.pace.fixed_s + 6 * found.pace.per_candidate_s, abs=0.1)
    assert (await dry_run(REF, journal=str(journal), budget=Budget(candidates=5))).to_do == 1
    assert (await dry_run(REF, journal=str(tmp_path / "new.jsonl"))).begun is None


async def test_a_journal_of_other_work_is_told(tmp_path: Path) -> None:
    journal = run_of(tmp_path / "j.jsonl", fingerprint="other", workload="other")
    found = await dry_run(REF, journal=str(journal))
    assert found.begun is not None and not found.begun.same and found.pace is None


@pytest.mark.parametrize("print_of", SURVEY.fingerprints)
async def test_the_newest_run_of_the_same_source_gives_the_pace(tmp_path: Path, print_of: str) -> None:
    journals = tmp_path / "cache" / "atune" / "journals"
    same = run_of(journals / "same.jsonl", 5, fingerprint=print_of, origin="")
    edited = run_of(journals / "edited.jsonl", 3, fingerprint="edited", origin=REF.origin)
    run_of(journals / "unrelated.jsonl", 9, fingerprint="unrelated", origin="/other.py:WORKLOAD")
    (journals / "damaged.jsonl").write_text("no journal\n")
    os.utime(same, (1, 1))
    pace = (await dry_run(REF)).pace
    assert pace is not None and (pace.journal, pace.candidates, pace.same) == (str(same), 5, True)
    same.unlink()
    pace = (await dry_run(REF)).pace
    assert pace is not None and (pace.journal, pace.candidates, pace.same) == (str(edited), 3, False)


async def test_a_time_budget_bounds_the_estimate(tmp_path: Path) -> None:
    journal = run_of(tmp_path / "cache" / "atune" / "journals" / "j.jsonl")
    found = await dry_run(REF, budget=Budget(seconds=0.5))
    assert found.pace is not None and found.pace.journal == str(journal)
    assert found.seconds == pytest.approx(found.pace.fixed_s + 0.5, abs=0.1)


async def test_a_space_that_was_not_looked_at_whole(workers: Callable[..., None]) -> None:
    half = msgspec.structs.replace(SURVEY, points=1000, looked_at=100, admitted=50, exact=False, keys=())
    workers(half)
    assert (await dry_run(REF)).to_do == 500
    workers(msgspec.structs.replace(half, points=None))
    assert (await dry_run(REF)).to_do is None
    assert (await dry_run(REF, budget=Budget(candidates=7))).to_do == 7


async def test_the_result_cache_is_asked(workers: Callable[..., None]) -> None:
    cache = ResultCache()
    parts: dict[str, Any] = {"kernel": "toy", "problem": {"N": 64}}
    cache.put(key(**parts), events(2.0, 1.0))
    cache.put(key(**{**parts, "fingerprint": "another"}), events(1.0))
    cache.put(key(**{**parts, "problem": {"N": 65}}), events(1.0))
    cache.put(key(**{**parts, "device": "a GPU"}), events(1.0))
    assert (await dry_run(REF)).cached == ({"block": 32},)


async def test_without_a_device_the_space_is_counted_all_the_same(workers: Callable[..., None]) -> None:
    workers(error=TargetError("no GPU is there"))
    found = await dry_run(REF)
    assert (found.impossible, found.target, found.to_do) == ("no GPU is there", None, 10)


async def test_one_outcome_is_no_pace() -> None:
    assert pace_of(Stream().candidate(0, 1.0).finished().events, "j", True) is None
