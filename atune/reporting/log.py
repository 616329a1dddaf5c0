"""Log events, with structlog or `logging`, to a stream or to the program's own logger."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from inspect import iscoroutinefunction
from typing import Any, Literal, Protocol, TextIO

import msgspec

from atune.errors import UsageError, name_and_message, warn_caller
from atune.journal.events import BestChanged, Event, FinalOrdered, RunFinished
from atune.journal.result import record_of, valid_finalists
from atune.journal.state import State, header_in
from atune.reporting.text import Output, shown

WARNINGS = frozenset({
    "build_failed", "compile_repeated", "benchmark_failed", "benchmark_repeated", "device_excluded", "device_lost",
    "group_split", "run_interrupted", "warned",
})  # fmt: skip
DETAILS = frozenset({
    "candidate_proposed", "candidate_lowered", "candidate_pruned", "artifact_built", "benchmark_started",
    "space_surveyed",
})  # fmt: skip
"""Events in `WARNINGS` are logged as warnings, events in `DETAILS` as debug, and all other events as info."""
LONG_FIELDS = ("timing", "entries", "reference", "kernel")
"""Long fields, such as samples, that are logged in a separate debug entry."""
SHARED_FIELDS = ("run", "workload", "seq", "time", "index", "config")
"""Fields that are logged in the main entry of an event, and again in the separate debug entry."""
HIDDEN_FIELDS = ("seq", "mono", "detail")
"""Fields that the log on a terminal omits."""


class EventLog(Protocol):
    """A logger whose methods take fields as keywords, such as ``structlog.get_logger()`` with any wrapper class."""

    def debug(self, event: str, **fields: Any) -> Any: ...

    def info(self, event: str, **fields: Any) -> Any: ...

    def warning(self, event: str, **fields: Any) -> Any: ...


Log = EventLog | logging.Logger | logging.LoggerAdapter[Any] | Literal[False]
"""A logger from structlog or `logging`, or False to log nothing."""
LogEvent = Callable[[Event, State | None, str], None]
"""A function that logs an event. It takes the event, the state after the event, and the journal's name or ``""``."""


def event_log(log: Log | None) -> LogEvent:
    """Return a function that logs events through `log`.

    An entry has the name of the event, and the event's fields as JSON-compatible data. ``time`` is a string (ISO 8601,
    UTC), and ``mono`` is in seconds. The documentation of each event gives the units of the other fields. An event's
    ``message`` is called ``text`` in the entry. Each entry also has ``run`` and ``workload``, and if the event is about
    a candidate, the candidate's ``config``. If the candidate was measured, became the best so far, or won, the entry
    has the candidate's ``latency_ms`` and ``spread``. The samples are in a separate debug entry, whose name ends with
    ``_details``. Failures and lost devices are logged as warnings, each step of a candidate as debug, and other events
    as info. A `logging` record has the fields both in its message and as the dict ``record.atune``.

    `log`: a logger, which decides what is shown. None means structlog's logger if the program configured structlog.
    With None, an error in the logger causes only a warning. Raises `UsageError` for anything that is not a logger.
    """
    if unasked := log is None:  # without importing structlog, a program cannot have configured it
        log = getattr(sys.modules.get("structlog"), "is_configured", bool)() and sys.modules["structlog"].get_logger()
    if log is False:
        return lambda *_: None
    try:
        write = _writer(log)
    except Exception as error:
        if not unasked:
            loggers = "a logger of structlog, such as structlog.get_logger(), or of logging"
            raise UsageError(f"log: must be {loggers}, got {log!r}: {name_and_message(error)}") from error
        with suppress(Warning):
            warn_caller(f"log: structlog failed: {name_and_message(error)}; log=False stops logging", RuntimeWarning)
        return lambda *_: None

    def enter(event: Event, state: State | None, run: str) -> None:
        if state is None:  # an earlier part of the run has already logged this event
            return
        name, fields = str(type(event).__struct_config__.tag), _fields(event, state, run)
        brief = {field: value for field, value in fields.items() if field not in LONG_FIELDS}
        try:
            if len(brief) < len(fields):
                apart = {field: fields[field] for field in SHARED_FIELDS + LONG_FIELDS if field in fields}
                write("debug", f"{name}_details", apart)
            write("warning" if name in WARNINGS else "debug" if name in DETAILS else "info", name, brief)
        except Exception as error:
            if not unasked:
                raise
            with suppress(Warning):
                warn_caller(f"log: lost an entry: {name_and_message(error)}; log=False stops logging", RuntimeWarning)

    return enter


def stream_logger(stream: TextIO | None = None) -> EventLog:
    """Return a logger that writes its entries to `stream` (default: stderr).

    If the stream is a terminal, the entries are readable text. Otherwise, each entry is a line with a JSON object in
    ASCII. Other loggers of the process are not affected.
    """
    import structlog

    out: Any = Output(sys.stderr if stream is None else stream)
    renderers: list[Any] = [structlog.processors.JSONRenderer()]
    if out.isatty():
        renderers = [_shown, structlog.dev.ConsoleRenderer(sort_keys=False, timestamp_key="time")]
    logger: EventLog = structlog.wrap_logger(
        structlog.PrintLogger(out),
        processors=[structlog.processors.add_log_level, *renderers],
        wrapper_class=structlog.BoundLogger,
        context_class=dict,
        cache_logger_on_first_use=False,
    )
    return logger


def _writer(log: Any) -> Callable[[str, str, dict[str, Any]], None]:
    """Return a function that takes a level, a name and fields, and logs an entry. Raises if `log` is not a logger."""
    if isinstance(log, (logging.Logger, logging.LoggerAdapter)) and not hasattr(log, "bind"):
        return lambda level, name, fields: getattr(log, level)("%s %s", name, fields, extra={"atune": fields})

    def method(name: str) -> Any:  # an AsyncBoundLogger wraps the logger to write to
        return getattr(log.sync_bl if iscoroutinefunction(log.info) else log, name)

    with suppress(RuntimeError):  # outside of an event loop, an AsyncBoundLogger shows none of its methods
        for name in ("bind", "debug", "info", "warning"):
            method(name)
    return lambda level, name, fields: method(level)(name, **fields)


def _fields(event: Event, state: State, run: str) -> dict[str, Any]:
    """Return the fields of an event as data, with additional fields about the run and the candidate."""
    header = header_in(state)
    run = run.removesuffix(".jsonl") or f"{header.workload}-{header.time}"
    fields: dict[str, Any] = {"run": run, "workload": header.workload, **msgspec.to_builtins(event)}
    del fields["event"]  # structlog adds the name itself
    if "message" in fields:  # a record of `logging` has a message of its own
        fields["text"] = fields.pop("message")
    fields["time"] = datetime.fromtimestamp(event.time, UTC).isoformat(timespec="microseconds")
    index, timing = getattr(event, "index", None), getattr(event, "timing", None)
    if isinstance(event, (FinalOrdered, RunFinished)) and state.winner is not None:
        index = fields["index"] = state.first(state.winner).index
    if index is not None:
        fields["config"] = state.entry(index).config
        if isinstance(event, (BestChanged, FinalOrdered, RunFinished)):
            final = () if isinstance(event, BestChanged) else valid_finalists(state)
            timing = record_of(state, state.entry(index), {entry.index: entry.timing for entry in final}).timing
    return fields if timing is None else fields | {"latency_ms": timing.latency_ms, "spread": timing.spread}


def _shown(logger: object, method: str, entry: dict[str, Any]) -> dict[str, Any]:
    """Return an entry without the fields that a terminal does not show: empty fields and `HIDDEN_FIELDS`."""
    import structlog

    if entry["event"].endswith("_details"):
        raise structlog.DropEvent
    fields = {name: value for name, value in entry.items() if name not in HIDDEN_FIELDS and value not in (None, "", [])}
    fields = {name: shown(value) if isinstance(value, str) else value for name, value in fields.items()}
    fields["time"] = datetime.fromisoformat(entry["time"]).astimezone().strftime("%H:%M:%S.%f")[:-3]
    forms = {"latency_ms": "{:.4g}", "spread": "{:.1%}"}
    return fields | {name: form.format(fields[name]) for name, form in forms.items() if name in fields}
