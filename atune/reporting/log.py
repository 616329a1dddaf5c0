"""Events as log entries through structlog: on a stream, or through the caller's own logger."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from inspect import iscoroutinefunction
from typing import Any, Protocol, TextIO

import msgspec

from atune.errors import UsageError
from atune.journal.events import Event
from atune.reporting.screen import Output, shown

WARNINGS = frozenset({
    "build_failed", "compile_repeated", "benchmark_failed", "benchmark_repeated", "device_excluded", "device_lost",
    "group_split", "run_interrupted", "warned",
})  # fmt: skip
DETAILS = frozenset({
    "candidate_proposed", "candidate_lowered", "candidate_pruned", "artifact_built", "benchmark_started",
})  # fmt: skip
"""Events that are logged as warnings, and those of debugging; the rest is info."""
HIDDEN = ("seq", "mono", "detail", "timing", "entries")
"""Fields that the log for people leaves out, or has in other words."""


class EventLog(Protocol):
    """A logger whose methods take fields, such as ``structlog.get_logger()`` with any wrapper class."""

    def debug(self, event: str, **fields: Any) -> Any: ...

    def info(self, event: str, **fields: Any) -> Any: ...

    def warning(self, event: str, **fields: Any) -> Any: ...


def event_log(log: EventLog) -> Callable[[Event], None]:
    """Return a function that logs an event through `log`: its name, and its fields as JSON-compatible data.

    ``time`` is text (ISO 8601, UTC) and ``mono`` is in seconds. The event's class gives the units of other fields.
    Losses and failures are warnings, the steps of single candidates are debug, and the rest is info. `log` decides
    what is shown. Raises `UsageError` if `log` takes no fields, like the loggers of `logging`.
    """
    with suppress(RuntimeError):  # outside of an event loop, structlog's AsyncBoundLogger shows none of its methods
        methods = [getattr(log, name, None) for name in ("bind", "debug", "info", "warning")]
        if not all(map(callable, methods)) or (iscoroutinefunction(methods[-1]) and not hasattr(log, "sync_bl")):
            raise UsageError(f"log: give a logger of structlog, such as structlog.get_logger(), got {log!r}")
    return lambda event: _entry(log, event, _data(event))


def event_logger(stream: TextIO | None = None) -> Callable[[Event], None]:
    """Return a function that writes an event as one log entry to `stream` (default: stderr).

    On a terminal it writes text for people, elsewhere one JSON object a line, in ASCII. Levels and fields are those of
    `event_log`. Other loggers of the process stay unchanged.
    """
    import structlog

    out: Any = Output(sys.stderr if stream is None else stream)
    for_people = out.isatty()
    render: Any = structlog.processors.JSONRenderer()
    if for_people:
        render = structlog.dev.ConsoleRenderer(sort_keys=False, timestamp_key="time")
    logger = structlog.wrap_logger(
        structlog.PrintLogger(out),
        processors=[structlog.processors.add_log_level, render],
        wrapper_class=structlog.BoundLogger,
        context_class=dict,
        cache_logger_on_first_use=False,
    )
    return lambda event: _entry(logger, event, _shown(event) if for_people else _data(event))


def _entry(log: Any, event: Event, fields: dict[str, Any]) -> None:
    name = str(type(event).__struct_config__.tag)
    plain = log.sync_bl if iscoroutinefunction(log.info) else log  # the one inside of an AsyncBoundLogger
    write = plain.warning if name in WARNINGS else plain.debug if name in DETAILS else plain.info
    write(name, **fields)


def _data(event: Event) -> dict[str, Any]:
    """Return every field as data, for a machine."""
    fields: dict[str, Any] = msgspec.to_builtins(event)
    del fields["event"]  # structlog adds the name itself
    return {**fields, "time": datetime.fromtimestamp(event.time, UTC).isoformat(timespec="microseconds")}


def _shown(event: Event) -> dict[str, Any]:
    """Return the fields to show to a person, without samples, details and empty fields."""
    fields = {name: value for name, value in _data(event).items() if name not in HIDDEN and value not in (None, "", [])}
    fields = {name: shown(value) if isinstance(value, str) else value for name, value in fields.items()}
    fields["time"] = datetime.fromtimestamp(event.time).strftime("%H:%M:%S.%f")[:-3]
    if (timing := getattr(event, "timing", None)) is not None:
        fields |= {"latency_ms": f"{timing.latency_ms:.4g}", "spread": f"{timing.spread:.1%}"}
    return fields
