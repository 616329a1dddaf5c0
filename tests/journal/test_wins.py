"""What the summary says the winner wins by."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from atune.journal.events import ArtifactBuilt, decode, encode
from atune.journal.merge import _kept
from atune.journal.result import Record
from atune.journal.state import State
from atune.journal.wins import wins_by
from atune.model.artifact import StaticFacts, Work
from atune.model.device import Target
from atune.model.occupancy import MachineFacts

HOPPER = Target("cuda", "sm_90a")


def record(index: int, latency_ms: float, *, machine: MachineFacts | None = None, **facts: Any) -> Record:
    return Record(
        index=index,
        key=str(index),
        config={},
        status="measured",
        latency_ms=latency_ms,
        facts=StaticFacts(**{"threads": 128, "smem_bytes": 0, **facts}),
        machine=machine or MachineFacts(registers=64, code_bytes=1024),
    )


def test_facts_that_set_the_winner_apart_from_all_next_ones_are_told() -> None:
    stages = [Work(stages=n) for n in (4, 2, 3, 2)]
    spilling = MachineFacts(registers=255, stack_bytes=64, code_bytes=1024)
    winner = record(0, 1.0, work=stages[0])
    rivals = [record(n, 1.0 + n / 10, work=stages[n], machine=spilling) for n in (1, 2, 3)]
    said = wins_by(winner, rivals, HOPPER)
    assert said is not None
    assert "no stack and no spills against 64 bytes of stack a thread" in said
    assert "occupancy 8 against 2" in said and "pipeline stages 4 against 2 and 3" in said
    assert "candidate 1, 10.0% slower" in said and "threads" not in said


def test_a_fact_that_one_of_the_next_has_too_is_told_beside_the_next_one_alone() -> None:
    winner = record(0, 1.0, threads=256)
    said = wins_by(winner, [record(1, 1.1, threads=128), record(2, 1.2, threads=256)], None)
    assert said == "threads 256 against 128 (beside the next one, candidate 1, 10.0% slower)"


def test_a_winner_with_the_same_facts_wins_by_nothing_that_is_known() -> None:
    said = wins_by(record(0, 1.0), [record(1, 1.01)], HOPPER)
    assert said == "nothing that is known: no fact tells it from the next one, candidate 1, 1.0% slower"


def test_a_winner_alone_wins_by_nothing() -> None:
    assert wins_by(record(0, 1.0), [], HOPPER) is None


def test_facts_that_one_of_them_lacks_are_not_compared() -> None:
    winner = record(0, 1.0, work=Work(stages=4))
    said = wins_by(winner, [record(1, 1.1)], HOPPER)
    assert said is not None and "stages" not in said and said.startswith("nothing that is known")


def test_a_number_between_those_of_the_next_ones_explains_nothing() -> None:
    winner = record(0, 1.0, threads=128)
    rivals = [record(1, 1.1, threads=256), record(2, 1.2, threads=64)]
    assert wins_by(winner, rivals, None) == "threads 128 against 256 (beside the next one, candidate 1, 10.0% slower)"


def built(**more: Any) -> ArtifactBuilt:
    return ArtifactBuilt(seq=1, time=0.0, mono=0.0, indices=(3, 4), file="a.so", seconds=1.0, **more)


def test_each_member_of_a_library_has_its_own_registers() -> None:
    event = built(machine=(MachineFacts(registers=40), MachineFacts(registers=80)))
    state = State()
    state.apply(decode(encode(event)))
    assert [state.entries[index].machine for index in (3, 4)] == list(event.machine)


def test_a_library_without_facts_as_in_journals_of_before_has_none() -> None:
    state = State()
    state.apply(decode(encode(built())))
    assert state.entries[3].machine is None


def test_merging_leaves_each_member_its_registers() -> None:
    event = built(machine=(MachineFacts(registers=40), MachineFacts(registers=80)))
    merged = cast("ArtifactBuilt", _kept(event, cast("Any", SimpleNamespace(indices={4: 0}))))
    assert (merged.indices, merged.machine) == ((0,), (MachineFacts(registers=80),))
