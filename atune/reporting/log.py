"""Events as log entries, through structlog or `logging`: on a stream, or through the program's own logger."""

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
"""Events that are logged as warnings, and those of debugging; the rest is info."""
LONG_FIELDS = ("timing", "entries", "reference", "kernel")
"""Fields with all samples, and that of the winner's library, which debug entries of their own have."""
SHARED_FIELDS = ("run", "workload", "seq", "time", "index", "config")
"""Fields that these share with the entry of their event."""
HIDDEN_FIELDS = ("seq", "mono", "detail")
"""Fields that the log for people leaves out."""


class EventLog(Protocol):
    """A logger whose methods take fields, such as ``structlog.get_logger()`` with any wrapper class."""

    def debug(self, event: str, **fields: Any) -> Any: ...

    def info(self, event: str, **fields: Any) -> Any: ...

    def warning(self, event: str, **fields: Any) -> Any: ...


Log = EventLog | logging.Logger | logging.LoggerAdapter[Any] | Literal[False]
"""A logger of structlog or of `logging`; False for none."""
LogEvent = Callable[[Event, State | None, str], None]
"""Logs an event, given the state with it and the name of its journal; empty where there is none."""


def event_log(log: Log | None) -> LogEvent:
    """Return a function that logs events through `log`.

    An entry has the event's name, and its fields as JSON-compatible data. ``time`` is text (ISO 8601, UTC) and ``mono``
    is in seconds. The event's class gives the units of other fields; its ``message`` is the entry's ``text``. Each
    entry has ``run`` and ``workload`` too, and that of a candidate its ``config``. Where a candidate was measured, is
    the best so far, or wins, the entry has its ``latency_ms`` and ``spread``. The samples are in a debug entry, whose
    name ends with ``_details``.

    Losses and failures are warnings, the steps of single candidates are debug, and the rest is info. `log` decides
    what is shown. A record of `logging` has the fields in its message, and as the dict ``record.atune``.

    `log`: None takes the program's structlog if it was configured. If that takes no entries, or not one of them, this
    is only a warning. Raises `UsageError` for what is no logger.
    """
    if unasked := log is None:  # structlog is not imported for this
        log = getattr(sys.modules.get("structlog"), "is_configured", bool)() and sys.modules["structlog"].get_logger()
    if log is False:
        return lambda *_: None
    try:
        write = _writer(log)
    except Exception as error:
        if not unasked:
            loggers = "a logger of structlog, such as structlog.get_logger(), or of logging"
            raise UsageError(f"log: give {loggers}, got {log!r}: {name_and_message(error)}") from error
        with suppress(Warning):
            warn_caller(f"log: structlog takes no entry: {name_and_message(error)}; log=False: no log", RuntimeWarning)
        return lambda *_: None

    def enter(event: Event, state: State | None, run: str) -> None:
        if state is None:  # of an earlier part, which was logged then
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
                warn_caller(f"log: an entry is lost: {name_and_message(error)}; log=False: no log", RuntimeWarning)

    return enter


def stream_logger(stream: TextIO | None = None) -> EventLog:
    """Return a logger that writes its entries to `stream` (default: stderr).

    On a terminal it writes text for people, elsewhere one JSON object a line, in ASCII. Other loggers of the process
    stay unchanged.
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
    """Return a function that writes an entry of a level and a name through `log`. Raises for what is no logger."""
    if isinstance(log, (logging.Logger, logging.LoggerAdapter)) and not hasattr(log, "bind"):
        return lambda level, name, fields: getattr(log, level)("%s %s", name, fields, extra={"atune": fields})

    def method(name: str) -> Any:  # of the logger inside of an AsyncBoundLogger
        return getattr(log.sync_bl if iscoroutinefunction(log.info) else log, name)

    with suppress(RuntimeError):  # outside of an event loop, an AsyncBoundLogger shows none of its methods
        for name in ("bind", "debug", "info", "warning"):
            method(name)
    return lambda level, name, fields: method(level)(name, **fields)


def _fields(event: Event, state: State, run: str) -> dict[str, Any]:
    """Return every field as data, for a machine, and what makes the entry one of its run and of a candidate."""
    header = header_in(state)
    run = run.removesuffix(".jsonl") or f"{header.workload}-{header.time}"
    fields: dict[str, Any] = {"run": run, "workload": header.workload, **msgspec.to_builtins(event)}
    del fields["event"]  # structlog adds the name itself
    if "message" in fields:  # which a record of `logging` has already
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
    """Return the fields to show to a person, without samples, details and empty fields."""
    import structlog

    if entry["event"].endswith("_details"):
        raise structlog.DropEvent
    fields = {name: value for name, value in entry.items() if name not in HIDDEN_FIELDS and value not in (None, "", [])}
    fields = {name: shown(value) if isinstance(value, str) else value for name, value in fields.items()}
    fields["time"] = datetime.fromisoformat(entry["time"]).astimezone().strftime("%H:%M:%S.%f")[:-3]
    forms = {"latency_ms": "{:.4g}", "spread": "{:.1%}"}
    return fields | {name: form.format(fields[name]) for name, form in forms.items() if name in fields}
