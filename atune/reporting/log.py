"""Events as log lines through structlog, configured for this logger alone: no one else's logging is touched."""

from __future__ import annotations

import json as stdlib_json
import sys
from collections.abc import Callable, MutableMapping
from datetime import UTC, datetime
from typing import Any, TextIO

import msgspec

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


def event_logger(stream: TextIO | None = None, json: bool | None = None) -> Callable[[Event], None]:
    """Return a function that writes an event as one log entry to `stream` (stderr by default).

    `json`: one JSON object a line; False renders for people; None decides by whether `stream` is a terminal. Losses
    and failures are warnings, the steps of single candidates debug, the rest info.
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

    def log(event: Event) -> None:
        fields = _fields(event, as_json)
        name = str(type(event).__struct_config__.tag)
        if isinstance(event, _WARNINGS):
            logger.warning(name, **fields)
        elif isinstance(event, _DETAILS):
            logger.debug(name, **fields)
        else:
            logger.info(name, **fields)

    return log


def _fields(event: Event, as_json: bool) -> dict[str, Any]:
    """Return what to show: everything for a machine; for a person without samples, long ends and empty fields."""
    moment = datetime.fromtimestamp(event.time, UTC)
    if as_json:
        fields = msgspec.to_builtins(event)
        del fields["event"]  # the name, which structlog adds itself
        return {**fields, "time": moment.isoformat(timespec="microseconds")}
    fields = {"time": moment.astimezone().strftime("%H:%M:%S.%f")[:-3]}
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
    return stdlib_json.dumps(fields, separators=(",", ":"))
