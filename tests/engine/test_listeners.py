"""Functions of the caller's that hear of a run: what they raise ends it, at every door, and the journal goes on."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import structlog
from own_strategy import Own as OwnStrategy

import atune
from atune import Problems, Tuner, tune
from atune.errors import StrategyError, UsageError
from atune.journal.events import CandidateMeasured, Event, RunFinished, RunInterrupted, RunStarted
from atune.journal.reader import read
from atune.testing import FakeMachine

KERNELS = Path(__file__).parents[1] / "set_kernels.py"


class Own(BaseException):
    """An exception of the caller's that is no `Exception`."""


ERRORS: list[BaseException] = [
    KeyError("oops"), SystemExit(3), KeyboardInterrupt("enough"), Own("own"), OSError(28, "no space"),
    BaseExceptionGroup("several", [SystemExit(3), ValueError("x")]),
    asyncio.CancelledError("gone"), GeneratorExit(), StopIteration(1),
]  # fmt: skip
OF_COROUTINES = asyncio.CancelledError | GeneratorExit | StopIteration
"""These would end a coroutine in another way, so that an error stands for them."""


class Raising:
    """Raises `error` at the first event of a `kind`, and counts the calls after that."""

    def __init__(self, error: BaseException, kind: type[Event] = CandidateMeasured) -> None:
        self.error, self.kind, self.raised, self.later = error, kind, False, 0

    def __call__(self, event: Event) -> None:
        self.later += self.raised
        if isinstance(event, self.kind) and not self.raised:
            self.raised = True
            raise self.error


async def caught(call: Any) -> object:
    """In a loop of the caller's an exit is the caller's to catch, too: it comes out of the await, and only there."""
    try:
        return await call
    except BaseException as error:
        raised = error
    await asyncio.sleep(0.01)  # the loop goes on
    return raised


async def by_tuner(**options: Any) -> object:
    async with Tuner(**options) as tuner:
        async for _ in tuner.events():
            pass
        return await tuner.result()


@pytest.mark.parametrize("door", [atune.run, tune, by_tuner])
@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_what_a_listener_raises_ends_the_run_and_comes_out(
    error: BaseException, door: Callable[..., Any], tmp_path: Path
) -> None:
    bad, options = Raising(error), {"machine": FakeMachine(40), "journal": tmp_path / "j"}
    expected = UsageError if isinstance(error, OF_COROUTINES) else type(error)
    seen: BaseException | object = None
    try:
        found = door(on_event=bad, **options)
        seen = asyncio.run(caught(found))
    except expected as raised:
        seen = raised
    assert isinstance(seen, expected) and (seen is error or seen.__cause__ is error) and bad.later == 0
    assert any("an event listener raised" in note for note in seen.__notes__)
    events = read(tmp_path / "j")
    assert isinstance(events[-1], RunInterrupted) and type(error).__name__ in events[-1].reason
    measured = sum(isinstance(event, CandidateMeasured) for event in events)
    assert 1 <= measured < 40
    result = atune.run(machine=FakeMachine(40), journal=tmp_path / "j")
    assert result.measured == 40 and not result.warnings


@pytest.mark.parametrize("kind", [RunStarted, RunFinished])
def test_the_first_and_the_last_event_are_no_exception(kind: type[Event], tmp_path: Path) -> None:
    with pytest.raises(SystemExit):
        atune.run(machine=FakeMachine(8), journal=tmp_path / "j", on_event=Raising(SystemExit(3), kind))
    assert sum(isinstance(event, RunFinished) for event in read(tmp_path / "j")) == (kind is RunFinished)
    with pytest.raises(SystemExit):  # at an event of an earlier part
        atune.run(machine=FakeMachine(8), journal=tmp_path / "j", on_event=Raising(SystemExit(3), RunStarted))
    assert atune.run(machine=FakeMachine(8), journal=tmp_path / "j").measured == 8


@pytest.mark.parametrize("option", ["on_event", "log"])
def test_an_exit_in_a_set_ends_the_set_and_keeps_its_folder(option: str, tmp_path: Path) -> None:
    class Log(logging.LoggerAdapter[Any]):
        bind = debug = warning = lambda *_, **__: None

        def info(self, event: object, *_: object, run: str = "", **__: object) -> None:
            if event == "run_started" and run == "s/0000":
                raise SystemExit(3)

    given: Any = {"on_event": Raising(SystemExit(3), RunStarted), "log": Log(logging.getLogger())}
    with pytest.raises(SystemExit) as raised:
        atune.run_set(
            f"{KERNELS}:SCALE", Problems(n=[256, 512]), journal=tmp_path / "s", target="c", **{option: given[option]}
        )
    assert raised.value.code == 3 and "continue with journal=" in raised.value.__notes__[-1]
    assert [*(tmp_path / "s").glob("*.jsonl")]


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), asyncio.CancelledError()])
@pytest.mark.parametrize("method", ["ask", "tell"])
def test_what_a_strategy_raises_hangs_no_run(method: str, error: BaseException) -> None:
    class Bad(OwnStrategy):
        def ask(self) -> int | None:
            return self.fail("ask", super().ask)

        def tell(self, *outcome: Any) -> None:
            self.fail("tell", super().tell, *outcome)

        def fail(self, name: str, function: Any, *arguments: Any) -> Any:
            if name == method:
                raise error
            return function(*arguments)

    with pytest.raises(StrategyError, match=rf"{method}\(.*\) raised {type(error).__name__}"):
        atune.run(machine=FakeMachine(8), strategy=Bad())


@pytest.mark.parametrize(("way", "bound"), [("run", {}), ("tune", {}), ("tune", {"a": 1})])
def test_an_async_logger_of_structlog_logs_all(way: str, bound: dict[str, int], configured: list[Any]) -> None:
    structlog.configure(wrapper_class=structlog.stdlib.AsyncBoundLogger)

    async def main() -> Any:
        log = structlog.get_logger(job="nightly")
        return await tune(machine=FakeMachine(4), log=log.bind(**bound) if bound else log)

    if way == "run":
        atune.run(machine=FakeMachine(4), log=structlog.get_logger(job="nightly"))
    else:
        asyncio.run(main())
    assert {entry["job"] for entry in configured} == {"nightly"} and configured[-1]["event"] == "run_finished"
    assert sum(entry["event"] == "candidate_measured" for entry in configured) == 4


def test_a_run_goes_on_where_the_journal_that_nobody_asked_for_cannot_be_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    events: list[Event] = []

    def full(fd: int, data: bytes) -> int:
        raise OSError(28, "No space left on device")

    def listen(event: Event) -> None:
        events.append(event)
        if isinstance(event, CandidateMeasured):
            monkeypatch.setattr("atune.journal.writer.os.write", full)

    result = atune.run(f"{KERNELS}:SCALE", target="c", on_event=listen)
    assert result.measured > 1 and [event.seq for event in events] == list(range(len(events)))
    assert sum("the run goes on without its journal: MachineError" in warning for warning in result.warnings) == 1
