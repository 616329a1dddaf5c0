"""What becomes of the compile service: each state, and what moves it on."""

from __future__ import annotations

import pytest

from atune.local import service_state as states
from atune.local.service_state import Broken, CompileCosts, Idle, Parsing, Ready, State, Unused, Warming
from atune.processes.messages import ServiceReady

COSTS = CompileCosts()


def decided(state: State, *, candidates: int = 48, workers: int = 2, asked: bool = False, now: float = 0.0) -> State:
    return states.decided(
        state, asked=asked, candidates=candidates, workers=workers, lower_s=COSTS.lower_s, now=now, costs=COSTS
    )


def test_it_is_used_where_it_pays() -> None:
    used, unused = decided(Idle()), decided(Idle(), candidates=1, workers=1)
    assert isinstance(used, Warming) and not used.soon and "48 candidates on 2 workers" in used.why
    assert isinstance(unused, Unused) and "1 candidates on 1 workers: about" in unused.why


def test_what_was_asked_for_by_name_is_not_reckoned() -> None:
    assert decided(Idle(), candidates=1, workers=1, asked=True) == Warming("as asked", soon=False)


def test_what_is_spent_on_parsing_is_spent() -> None:
    """Fifteen groups of one: all would wait for headers that nobody has begun to parse."""
    few = {"candidates": 15, "workers": 15}
    slow = CompileCosts(header_s=4.0)

    def after(state: State, now: float) -> State:
        return states.decided(state, asked=False, lower_s=slow.lower_s, now=now, costs=slow, **few)

    assert isinstance(after(Idle(), 100.0), Unused)
    assert isinstance(after(Parsing(99.9), 100.0), Unused)
    parsed = after(Parsing(started=96.0), 100.0)
    assert isinstance(parsed, Warming) and parsed.soon
    taken_over = after(Parsing(started=100.0, before=True), 100.0)
    assert isinstance(taken_over, Warming) and taken_over.soon


@pytest.mark.parametrize("state", [Warming("why", soon=True), Ready("why"), Unused("why")])
def test_it_is_decided_once(state: State) -> None:
    assert decided(state) is state


def test_a_process_that_broke_ahead_of_the_decision_is_the_reason() -> None:
    broken = states.failed(Parsing(0.0), "cicc ended")
    assert broken == Broken("cicc ended") == states.failed(broken, "cicc ended")
    assert decided(broken, asked=True) == Unused("nvcc, because cicc ended")


@pytest.mark.parametrize("state", [Warming("why", soon=True), Ready("why")])
def test_a_process_that_breaks_later_leaves_it_to_nvcc(state: State) -> None:
    assert states.failed(state, "cicc ended") == Unused("nvcc, because cicc ended")


def test_one_that_is_not_used_breaks_unnoticed() -> None:
    assert states.failed(Unused("1 candidates"), "cicc ended") == Unused("1 candidates")


def test_it_says_since_when_the_headers_are_parsed() -> None:
    warming = Warming("as asked", soon=True)
    assert states.listening(warming, ServiceReady(True, header_s=1.25)) == Ready("as asked; headers parsed in 1.2 s")
    assert states.listening(warming, ServiceReady(True)) == Ready("as asked; headers parsed by the previous run")
    assert states.listening(Unused("given up"), ServiceReady(True)) == Unused("given up")


def test_parsing_begins_once_and_not_after_the_decision() -> None:
    assert states.begun(Idle(), 5.0, before=True) == Parsing(5.0, before=True)
    late = Warming("as asked", soon=False)
    assert states.begun(late, 5.0, before=False) is late


def test_a_process_that_left_compiles_no_more() -> None:
    assert states.left(Ready("as asked")) == states.left(Warming("as asked", soon=True)) == Unused("as asked")
    for state in (Idle(), Parsing(0.0), Broken("it"), Unused("why")):
        assert states.left(state) is state
