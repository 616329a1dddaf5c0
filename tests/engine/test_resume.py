"""Resuming: nothing that has an outcome is done again, and the end is that of an uninterrupted run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace as replaced
from itertools import pairwise
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest
from fake_runs import cut, proposed

from atune.engine.settings import PARTS
from atune.errors import JournalError, UsageError
from atune.frontends.resume import resume
from atune.frontends.tuner import tune
from atune.journal.events import (
    ArtifactBuilt,
    BenchmarkStarted,
    CandidateLowered,
    CandidateMeasured,
    CandidateProposed,
    Event,
    FinalOrdered,
    FinalStarted,
    JournalRepaired,
    RunResumed,
    Warned,
)
from atune.journal.reader import read, replay
from atune.model.artifact import Roles, StaticFacts
from atune.model.device import DeviceLimits
from atune.model.settings import BenchmarkSettings
from atune.reporting.summary import summary
from atune.testing import FakeMachine, Script
from atune.workload.workload import WorkloadSpec

pytestmark = pytest.mark.anyio

SCRIPT = Script(
    latency_ms=lambda c: 1.0 + abs(c["x"] - 23) / 7,
    code_key=lambda c: str(c["x"] % 36),
    fails={3: "compile", 5: "mismatch", 8: "fault", 2: "lower"},
    facts=lambda c: StaticFacts(smem_bytes=100 * c["x"]),
)


def fake(configs: Any = 40, script: Script = SCRIPT, **options: Any) -> FakeMachine:
    return FakeMachine(configs, script, limits=DeviceLimits(smem_bytes=3500), **{"default": 7, **options})


async def until(
    journal: Path, moment: Callable[[Event], bool], machine: FakeMachine | None = None, **options: Any
) -> None:
    """Run until `moment` is true of an event of this part, then cancel."""
    machine = machine or fake()
    with anyio.CancelScope() as scope:

        def listen(event: Event) -> None:
            if machine.opened and moment(event):
                scope.cancel()

        await tune(machine=machine, journal=journal, on_event=listen, **options)
    assert scope.cancelled_caught


def nth(kind: type[Event], n: int) -> Callable[[Event], bool]:
    seen: list[Event] = []

    def moment(event: Event) -> bool:
        seen.extend([event] if isinstance(event, kind) else [])
        return len(seen) == n

    return moment


def comparable(journal: Path) -> dict[str, Any]:
    """What must be equal however often the run was interrupted."""
    result = replay(journal)
    outcomes = [
        (r.index, r.status, r.kind, r.same_as, r.latency_ms if r.status == "measured" else 0) for r in result.records
    ]
    left_out = ("wall_s", "journal", "best_over_time", "stages")
    figures = {k: v for k, v in summary(result).items() if k not in left_out}
    return {"outcomes": outcomes, "best": result.best_index, **figures}


def measured(journal: Path) -> list[int]:
    return [e.index for e in read(journal) if isinstance(e, CandidateMeasured)]


@pytest.mark.parametrize("strategy", ["exhaustive", "random"])
async def test_cut_after_any_event_the_run_ends_as_the_uninterrupted_one(tmp_path: Path, strategy: str) -> None:
    """Also with the same proposals in the same order, and every measurement made once."""
    whole = tmp_path / "whole"
    await tune(machine=fake(), journal=whole, strategy=strategy, seed=3)
    proposals, count = proposed(whole), len(read(whole))
    for kept in [*range(1, count, 9), count - 2, count - 1]:
        part = cut(whole, kept, tmp_path / "part")
        before = measured(part)
        machine = fake()
        await resume(part, machine=machine)
        assert comparable(part) == comparable(whole), f"cut after {kept} events"
        assert proposed(part) == proposals
        after = measured(part)
        assert len(set(after)) == len(after) and after[: len(before)] == before
        assert not set(before) & set(machine.measured["fake-0"])


async def test_roles_are_found_in_the_default(tmp_path: Path) -> None:
    """Where the default does not elaborate, in the first of the space that does; again in each part of a run."""
    whole, part, machine = tmp_path / "whole", tmp_path / "part", fake()
    result = await tune(machine=machine, journal=whole)
    assert machine.examined == [7] and result.roles == Roles((0,)) == replay(whole).roles
    await until(part, nth(CandidateMeasured, 5))
    assert (await resume(part, machine=fake())).roles == result.roles
    machine = fake(script=replaced(SCRIPT, fails={7: "lower", 0: "lower", 1: "lower"}))
    assert (await tune(machine=machine)).roles == Roles((0,)) and machine.examined == [7, 0, 1, 2]


async def test_only_the_finalists_are_compiled_again(tmp_path: Path) -> None:
    journal = tmp_path / "j"
    await until(journal, nth(CandidateMeasured, 20))
    done = {e.index for e in read(journal) if isinstance(e, CandidateMeasured)}
    machine = fake()
    await resume(journal, machine=machine)
    [finalists] = machine.finals
    again = [e for e in read(journal) if isinstance(e, ArtifactBuilt) and "again" in e.reason]
    assert {i for e in again for i in e.indices} == set(finalists) & done
    assert not (set(machine.lowered) & done) - set(finalists)
    assert 7 in finalists  # the default


async def test_a_finished_journal_returns_at_once(tmp_path: Path) -> None:
    journal = tmp_path / "j"
    result = await tune(machine=fake(), journal=journal)
    before = journal.read_bytes()
    machine = fake()
    again = await resume(journal, machine=machine)
    assert summary(again) == summary(result) and machine.opened == 0
    again = await tune(machine=machine, journal=journal)  # which has to look whether the work is the same
    assert summary(again) == summary(result) and machine.opened == 1 and not machine.starts
    assert journal.read_bytes() == before


async def test_a_larger_budget_goes_on_and_a_used_up_one_does_not(tmp_path: Path) -> None:
    journal = tmp_path / "j"
    await tune(machine=fake(), journal=journal, strategy="exhaustive", budget=15)
    assert (await resume(journal, machine=fake())).remaining == 25
    result = await resume(journal, machine=fake(), budget=30)
    assert result.remaining == 10 and len(result.records) == 30
    await resume(journal, machine=fake(), budget=None)
    await tune(machine=fake(), journal=tmp_path / "whole")
    assert comparable(journal) == comparable(tmp_path / "whole")
    assert len([e for e in read(journal) if isinstance(e, FinalOrdered)]) == 3


async def test_a_candidate_that_the_program_died_of_twice_is_suspect_and_skipped(tmp_path: Path) -> None:
    """An interruption in order makes nobody suspect."""
    journal, interrupted = tmp_path / "j", tmp_path / "interrupted"
    for _ in range(3):
        await until(interrupted, lambda e: isinstance(e, BenchmarkStarted) and e.index == 9)
    assert not [r for r in (await resume(interrupted, machine=fake())).failures if r.kind == "suspect"]
    for death in range(2):
        await until(journal, lambda e: isinstance(e, BenchmarkStarted) and e.index == 9)
        events = read(journal)
        cut(journal, next(e.seq for e in reversed(events) if isinstance(e, BenchmarkStarted) and e.index == 9) + 1)
        assert death == len([e for e in events if isinstance(e, RunResumed)])
    machine = fake()
    result = await resume(journal, machine=machine)
    [record] = [r for r in result.failures if r.kind == "suspect"]
    assert record.index == 9 and "died twice" in record.message and 9 not in machine.measured["fake-0"]
    assert result.measured + result.failed + result.pruned + result.duplicates == result.total == 40
    assert summary(replay(journal)) == summary(result)


async def test_a_torn_tail_is_cut_off_with_an_event_that_says_so(tmp_path: Path) -> None:
    journal = tmp_path / "j"
    await until(journal, nth(CandidateMeasured, 5))
    whole = journal.read_bytes()
    journal.write_bytes(whole + b'{"crc":"0000')
    with pytest.raises(JournalError, match="records another space: it had 40 candidates, and the space now has 39"):
        await tune(machine=fake(39), journal=journal)
    assert journal.read_bytes() == whole + b'{"crc":"0000'  # a refusal changes nothing
    await resume(journal, machine=fake())
    [repaired] = [e for e in read(journal) if isinstance(e, JournalRepaired)]
    assert repaired.cut_bytes == 12 and journal.read_bytes().startswith(whole)


async def test_deaths_in_finals_count_though_they_tear_the_journal(tmp_path: Path) -> None:
    """After two the order of the first timings stands. The repair belongs to the new part."""
    journal = tmp_path / "j"
    for _ in range(2):
        await until(journal, lambda e: isinstance(e, FinalStarted))
        events = read(journal)
        cut(journal, next(e.seq for e in reversed(events) if isinstance(e, FinalStarted)) + 1)
        journal.write_bytes(journal.read_bytes() + b'{"crc":"0000')
    result = await resume(journal, machine=fake())
    assert any(warning.startswith("no final: the final's process ended 2 times") for warning in result.warnings)
    found = [type(e) for e in read(journal)]
    assert not [e for e in read(journal) if isinstance(e, FinalOrdered)] and found.count(FinalStarted) == 2
    pairs = [*pairwise(found)]
    assert pairs.count((RunResumed, JournalRepaired)) == found.count(JournalRepaired) == 2


def version(machine: FakeMachine, **versions: str) -> FakeMachine:
    machine.versions = lambda: versions  # type: ignore[method-assign]
    return machine


@pytest.mark.parametrize(
    ("machine", "options", "parts", "message"),
    [
        (lambda: version(fake(), fake="2"), {}, ["versions"], "versions: fake was 1 and is 2"),
        (lambda: fake(), {"benchmark": BenchmarkSettings(n_repeat=3)}, ["settings"], "n_repeat was 20 and is 3"),
        (lambda: fake(), {"strategy": "random"}, ["settings"], "the strategy was exhaustive with seed 0 and is random"),
        (lambda: fake(fingerprint="g" * 64), {}, ["kernel"], "kernel: the source of the kernel"),
        (
            lambda: fake(device_name="another device"),
            {},
            ["device"],
            "it was a fake device, and this run uses another device",
        ),
    ],
)
async def test_other_work_is_refused_with_a_list_and_can_be_accepted(
    tmp_path: Path, machine: Callable[[], FakeMachine], options: dict[str, Any], parts: list[str], message: str
) -> None:
    journal = tmp_path / "j"
    await until(journal, lambda e: isinstance(e, CandidateProposed) and e.index == 39)
    before = journal.read_bytes()
    with pytest.raises(JournalError, match=message) as caught:
        await tune(machine=machine(), journal=journal, **options)
    assert "".join(f"--accept {part}" for part in parts) in str(caught.value)
    assert journal.read_bytes() == before
    result = await tune(machine=machine(), journal=journal, **options, accept=parts)
    assert result.best_index == 23 and not result.remaining
    [resumed] = [e for e in read(journal) if isinstance(e, RunResumed)]
    assert any(message.split("was")[0].split(": ")[-1][:8] in text for text in resumed.accepted)


async def test_a_finalist_that_compiles_to_other_code_is_left_out_with_a_warning(tmp_path: Path) -> None:
    journal = tmp_path / "j"
    await until(journal, lambda e: isinstance(e, FinalOrdered))
    events = read(journal)
    cut(journal, next(e.seq for e in events if isinstance(e, FinalOrdered)))
    machine = fake(script=Script(latency_ms=SCRIPT.latency_ms, code_key=lambda c: f"other {c['x']}"))
    await resume(journal, machine=machine)
    warnings = [e.message for e in read(journal) if isinstance(e, Warned)]
    assert warnings and all("its code has changed" in text for text in warnings)
    assert not machine.finals and replay(journal).best_index == 23


async def test_what_cannot_be_resumed_is_refused_with_the_reason(tmp_path: Path) -> None:
    journal = tmp_path / "j"
    with pytest.raises(JournalError, match="No such file"):
        await resume(journal)
    await until(journal, nth(CandidateLowered, 3))
    with pytest.raises(UsageError, match="does not name the file of its workload"):
        await resume(journal)
    with pytest.raises(UsageError, match="accept: give some of kernel, target"):
        await resume(journal, machine=fake(), accept=["everything"])


async def test_a_journal_of_other_kernels_is_refused_whatever_their_source_says(tmp_path: Path) -> None:
    """Of all that was lowered: the winner may be the same."""
    journal, other = tmp_path / "j", replaced(SCRIPT, ir_digest=lambda c: f"{c}{c['x'] == 11}")
    await tune(machine=fake(script=replaced(SCRIPT, ir_digest=str)), journal=journal, budget=20)
    kept = journal.read_bytes()
    with pytest.raises(JournalError, match=r"kernel: 20 of 20 candidates, such as \d+, have different kernels now"):
        await resume(journal, machine=fake(script=other), budget=30)
    alone = replaced(SCRIPT, ir_digest=lambda c: str(c) + "!" * (c["x"] == 7))
    with pytest.raises(JournalError, match="kernel: 1 of 20 candidates, such as 7, have different") as caught:
        await tune(machine=fake(script=alone), journal=journal, budget=30)
    assert "or accept this: atune resume JOURNAL --accept kernel (from Python: accept=[" in str(caught.value)
    assert journal.read_bytes() == kept
    result = await resume(journal, machine=fake(script=other), budget=30, accept=["kernel"])
    [resumed] = [e for e in read(journal) if isinstance(e, RunResumed)]
    assert result.measured > 20 and any("have different kernels" in text for text in resumed.accepted)


async def test_a_journal_of_another_problem_is_refused_whatever_is_accepted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def at(n: int) -> FakeMachine:
        machine = fake()
        describe = machine.describe

        async def described(*, seed: int = 0) -> WorkloadSpec:
            return msgspec.structs.replace(await describe(seed=seed), arguments={"n": n})

        monkeypatch.setattr(machine, "describe", described)
        return machine

    journal = tmp_path / "j"
    await tune(machine=at(512), journal=journal, budget=20)
    kept = journal.read_bytes()
    for accept in (), ("kernel",), PARTS:
        with pytest.raises(JournalError, match="records another problem: it was n=512 and is n=64"):
            await tune(machine=at(64), journal=journal, accept=accept)
    assert journal.read_bytes() == kept


async def test_a_journal_that_does_not_identify_its_kernels_is_named(tmp_path: Path) -> None:
    """As an older atune wrote it. With other versions, kernels cannot be compared."""
    journal = tmp_path / "j"
    await tune(machine=fake(script=replaced(SCRIPT, ir_digest=lambda c: "")), journal=journal, budget=20)
    with pytest.raises(JournalError, match="does not identify the kernels of 20 candidates"):
        await resume(journal, machine=fake(), budget=30)
    newer = version(fake(), fake="2")
    with pytest.raises(JournalError, match="versions: fake was 1") as caught:
        await resume(journal, machine=newer, budget=30)
    assert "kernel:" not in str(caught.value)
    assert (await resume(journal, machine=newer, budget=30, accept=["versions"])).measured > 20
