"""`log=`: the events of a run as entries of the caller's own logger."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import MutableMapping
from typing import Any, get_args

import msgspec
import pytest
import structlog
from event_streams import Stream
from structlog.testing import LogCapture

import atune
from atune.errors import UsageError
from atune.journal.events import AnyEvent, Warned
from atune.reporting.log import DETAILS, WARNINGS, event_log, event_logger
from atune.testing import FakeMachine, Script

pytestmark = pytest.mark.anyio


def as_json(logger: object, method: str, fields: MutableMapping[str, Any]) -> bytes:
    return msgspec.json.encode(fields)


def capturing(wrapper: Any = structlog.BoundLogger) -> tuple[Any, list[MutableMapping[str, Any]]]:
    capture = LogCapture()
    return structlog.wrap_logger(None, processors=[capture], wrapper_class=wrapper), capture.entries


async def test_a_run_is_logged_with_the_fields_of_its_events() -> None:
    """One entry an event, in their order, with what the logger was bound to."""
    log, entries = capturing()
    events: list[atune.events.Event] = []
    machine = FakeMachine(5, Script(fails={2: "compile"}))
    result = await atune.tune(machine=machine, log=log.bind(job=7), on_event=events.append)
    tags = [str(type(event).__struct_config__.tag) for event in events]
    assert [(e["event"], e["seq"], e["job"]) for e in entries] == [(t, n, 7) for n, t in enumerate(tags)]
    levels = {entry["event"]: entry["log_level"] for entry in entries}
    assert levels["candidate_proposed"] == "debug" and levels["candidate_measured"] == "info"
    assert levels["build_failed"] == "warning"
    for entry in entries:
        if entry["event"] == "candidate_measured":
            assert entry["timing"]["samples_us"] and isinstance(entry["device"], str)
        if entry["event"] == "candidate_proposed":
            assert entry["config"] == result.records[entry["index"]].config


async def test_msgspec_renders_each_entry() -> None:
    """Into bytes, by the caller's own configuration; each event can be read back from its line, but for the time."""
    out = io.BytesIO()
    processors = [structlog.processors.add_log_level, as_json]
    log = structlog.wrap_logger(structlog.BytesLogger(out), processors=processors, wrapper_class=structlog.BoundLogger)
    events: list[atune.events.Event] = []
    await atune.tune(machine=FakeMachine(3), log=log, on_event=events.append)
    lines = out.getvalue().splitlines()
    times = {"time": 0.0}
    decoded = [msgspec.convert(json.loads(line) | times, AnyEvent) for line in lines]
    assert decoded == [msgspec.structs.replace(event, **times) for event in events]
    assert all(json.loads(line)["time"].endswith("+00:00") for line in lines)


@pytest.mark.parametrize("what", [logging.getLogger("x"), print, 3, "info"])
def test_what_takes_no_fields_is_refused(what: Any) -> None:
    with pytest.raises(UsageError, match=r"log: give a logger of structlog, such as structlog\.get_logger\(\), got"):
        event_log(what)
    with pytest.raises(UsageError, match="log: give a logger of structlog"):
        atune.autotune(space={"a": [1]}, log=what)


@pytest.mark.parametrize("text", ["plain", "µ → 𝄞", 'quoted "\\'])
def test_the_command_lines_json_is_ascii_whatever_the_text(text: str) -> None:
    """A stream in another encoding takes it, and readers get the text back."""
    out = io.StringIO()
    event_logger(out)(Stream().add(Warned, message=text).events[-1])
    assert out.getvalue().isascii() and json.loads(out.getvalue())["message"] == text


def test_every_event_can_be_logged() -> None:
    """No field stands in the way of the entry's name, which every logger has as its first argument."""
    assert not [kind for kind in get_args(AnyEvent) if {"event", "self"} & {*kind.__struct_fields__}]
    assert {kind.__struct_config__.tag for kind in get_args(AnyEvent)} >= DETAILS | WARNINGS
