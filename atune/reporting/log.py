"""Events as log entries through structlog: on a stream, or through a logger of the caller's."""

from __future__ import annotations

import inspect
import json as stdlib_json
import re
import sys
from collections.abc import Callable, MutableMapping
from datetime import UTC, datetime
from typing import Any, Protocol, TextIO

import msgspec

from atune.errors import UsageError
from atune.journal.events import (
    ArtifactBuilt,
    BenchmarkFailed,
    BenchmarkRepeated,
    BenchmarkStarted,
    BuildFailed,
    CandidateLowered,
    CandidateProposed,
    CandidatePruned,
    CompileRepeated,
    DeviceExcluded,
    DeviceLost,
    Event,
    GroupSplit,
    RunInterrupted,
    Warned,
)
from atune.model.measurement import Timing

_WARNINGS = (
    BuildFailed, CompileRepeated, BenchmarkFailed, BenchmarkRepeated, DeviceExcluded, DeviceLost, GroupSplit,
    RunInterrupted, Warned,
)  # fmt: skip
_DETAILS = (CandidateProposed, CandidateLowered, CandidatePruned, ArtifactBuilt, BenchmarkStarted)


class EventLog(Protocol):
    """A logger that takes fields, as structlog's do: ``structlog.get_logger()``, whichever its wrapper class."""

    def debug(self, event: str, **fields: Any) -> Any: ...

    def info(self, event: str, **fields: Any) -> Any: ...

    def warning(self, event: str, **fields: Any) -> Any: ...


def event_log(log: EventLog) -> Callable[[Event], None]:
    """Return a function that logs an event through `log`: its name, and each field as data that JSON can hold.

    ``time`` is text (ISO 8601, UTC), ``mono`` seconds; the others have the units that the event's class gives. Losses
    and failures are warnings, the steps of single candidates debug, the rest info. What is shown, and how, is up to
    `log`. Raises `UsageError` where `log` takes no fields, as those of `logging` do not.
    """
    if not all(callable(getattr(log, name, None)) for name in ("bind", "debug", "info", "warning")):
        raise UsageError(f"log: give a logger of structlog, such as structlog.get_logger(), got {log!r}")
    if inspect.iscoroutinefunction(log.info):
        raise UsageError("log: its methods are called and not awaited: give a logger whose `info` is a plain function")

    def write(event: Event) -> None:
        _entry(log, event, _data(event))

    return write


def event_logger(stream: TextIO | None = None, json: bool | None = None) -> Callable[[Event], None]:
    """Return a function that writes an event as one log entry to `stream` (stderr by default).

    `json`: one JSON object a line; False renders for people; None decides by whether `stream` is a terminal. Levels
    and fields are those of `event_log`. Configured for this logger alone: no one else's logging is touched.
    """
    import structlog

    out = sys.stderr if stream is None else stream
    as_json = not out.isatty() if json is None else json
    render: Any
    if as_json:
        render = structlog.processors.JSONRenderer(serializer=_dumps)
    else:
        render = structlog.dev.ConsoleRenderer(colors=out.isatty(), sort_keys=False, timestamp_key="time")
    logger = structlog.wrap_logger(
        structlog.PrintLogger(out),
        processors=[structlog.processors.add_log_level, render],
        wrapper_class=structlog.BoundLogger,
        context_class=dict,
        cache_logger_on_first_use=False,
    )
    return lambda event: _entry(logger, event, _data(event) if as_json else _shown(event))


def _entry(log: EventLog, event: Event, fields: dict[str, Any]) -> None:
    name = str(type(event).__struct_config__.tag)
    if isinstance(event, _WARNINGS):
        log.warning(name, **fields)
    elif isinstance(event, _DETAILS):
        log.debug(name, **fields)
    else:
        log.info(name, **fields)


def _data(event: Event) -> dict[str, Any]:
    """Return every field as data, for a machine."""
    fields: dict[str, Any] = msgspec.to_builtins(event)
    del fields["event"]  # the name, which structlog adds itself
    return {**fields, "time": datetime.fromtimestamp(event.time, UTC).isoformat(timespec="microseconds")}


def _shown(event: Event) -> dict[str, Any]:
    """Return what to show to a person: without samples, long ends and empty fields."""
    moment = datetime.fromtimestamp(event.time, UTC)
    fields: dict[str, Any] = {"time": moment.astimezone().strftime("%H:%M:%S.%f")[:-3]}
    for name in event.__struct_fields__:
        value = getattr(event, name)
        if name in ("seq", "time", "mono", "detail") or value in (None, "", (), {}):
            continue
        if isinstance(value, Timing):
            fields["latency_ms"] = f"{value.latency_ms:.4f}"
            fields["spread"] = f"{value.spread:.1%}"
        elif name == "entries":
            fields["order"] = " ".join(f"{e.index}:{e.timing.latency_ms:.4f}ms" for e in value)
        elif isinstance(value, float):
            fields[name] = f"{value:.4g}"
        elif isinstance(value, msgspec.Struct):
            fields[name] = str(msgspec.to_builtins(value))
        else:
            fields[name] = value if isinstance(value, (int, str)) else str(value)
    return fields


def _dumps(fields: MutableMapping[str, Any], **_: Any) -> str:
    """Return `fields` as JSON in ASCII, which every stream takes."""
    text = msgspec.json.encode(fields).decode()
    return re.sub(r"[^\x00-\x7f]", lambda found: stdlib_json.dumps(found[0])[1:-1], text)
