"""Other tuners' results as journals: T4 auto-tuning results, and Kernel Tuner's cache files.

T4 is the results schema 1.0.0 of «T4: a FAIR auto-tuning format», as Kernel Tuner and atune write it. A cache file is
what Kernel Tuner's `process_cache` and `store_cache` write, also of a tuning that did not end. Data only.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, cast

from atune.errors import UsageError
from atune.journal.events import (
    SCHEMA,
    AnyEvent,
    ArtifactBuilt,
    BenchmarkFailed,
    BenchmarkStarted,
    BuildFailed,
    CandidateLowered,
    CandidateMeasured,
    CandidateProposed,
    CandidatePruned,
    DeviceReady,
    RunFinished,
    RunStarted,
)
from atune.journal.packed import NotWhole, unpacked
from atune.journal.result import TuneResult
from atune.journal.writer import write_journal
from atune.model.artifact import FailureKind, StaticFacts
from atune.model.candidate import Config, config_key, normalise, space_hash
from atune.model.device import DeviceInfo, Target
from atune.model.measurement import Timing

PRUNED = "pruned"
KINDS = {
    "compile": "compile", "timeout": "timeout", "runtime": "launch", "correctness": "mismatch", "constraints": PRUNED,
    "CompilationFailedConfig": "compile", "RuntimeFailedConfig": "launch", "InvalidConfig": PRUNED,
    "ErrorConfig": "launch",
}  # fmt: skip
"""atune's kind of failure for T4's kinds of invalidity, and for Kernel Tuner's errors."""
FAILED_MS = 1e20
"""Stands for the time of a failure in cache files of old versions of Kernel Tuner."""
SECONDS = {"milliseconds": 1e-3, "ms": 1e-3, "seconds": 1.0, "s": 1.0, "microseconds": 1e-6, "us": 1e-6}
"""Units of times, by the names that files give them."""


@dataclass(frozen=True)
class Tried:
    """One configuration's outcome in another tuner. `why`: a kind of failure or `PRUNED`, empty if it was measured."""

    config: Config
    samples_ms: tuple[float, ...]
    latency_ms: float | None
    why: str = ""
    said: str = ""
    """The file's own word for `why`."""
    compile_s: float = 0.0
    device_s: float = 0.0
    time: float = 0.0


@dataclass(frozen=True)
class Foreign:
    """A file's contents: a kernel on a problem and a device, and its configurations by key."""

    kernel: str
    device: str
    arguments: dict[str, Any] = field(default_factory=dict)
    tried: dict[str, Tried] = field(default_factory=dict)

    def add(self, tried: Tried) -> None:
        """Take in a configuration; of several tries of one, the first that was measured counts."""
        key = config_key(tried.config)
        if key not in self.tried or (self.tried[key].latency_ms is None and tried.latency_ms is not None):
            self.tried[key] = tried


def import_journal(file: str | os.PathLike[str], output: str | os.PathLike[str]) -> TuneResult:
    """Write the results in `file` as the journal `output`, and return them. The file may be compressed.

    Raises `UsageError` if `file` cannot be read, has neither format, or has no measured configuration. Raises
    `JournalError` if `output` exists or cannot be written.
    """
    path = os.fspath(file)
    data = _read(path)
    found = _parsed(path, data)
    if not any(tried.latency_ms is not None for tried in found.tried.values()):
        raise UsageError(f"{path}: no configuration in it was measured, so that there is nothing to import")
    events = list(_events(found, hashlib.sha256(data).hexdigest()))
    write_journal(os.fspath(output), events)
    return TuneResult.from_events(events, os.fspath(output), replayed=True)


def _read(path: str) -> bytes:
    try:
        with unpacked(path) as file:
            return file.read()
    except (OSError, NotWhole) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise UsageError(f"cannot read {path}: {reason}") from error


def _parsed(path: str, data: bytes) -> Foreign:
    """Return what the bytes of a file tell. Raises `UsageError`, naming `path`."""
    found = _json(data)
    try:
        if isinstance(found, dict) and isinstance(found.get("results"), list):
            return _of_t4(found, Path(path).name.partition(".")[0])
        if isinstance(found, dict) and isinstance(found.get("cache"), dict):
            return _of_cache(found)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        said = f"{type(error).__name__}: {error}"
        raise UsageError(
            f"{path}: it looks like results of another tuner, but is not as their format has it ({said})"
        ) from error
    raise UsageError(
        f"{path}: neither T4 results (a JSON object with «results») nor a cache file of Kernel Tuner (one with «cache»)"
    )


def _json(data: bytes) -> Any:
    """Return what JSON `data` holds; None for what is none. A cache file whose tuning did not end is closed first."""
    text = data.decode(errors="replace").strip()
    for whole in (text, text.removesuffix(",") + "}}"):
        try:
            return json.loads(whole)
        except (ValueError, RecursionError):
            continue
    return None


def _of_t4(found: Mapping[str, Any], name: str) -> Foreign:
    unit = (found.get("metadata") or {}).get("timeunit", "milliseconds")
    if unit not in SECONDS:
        raise ValueError(f"timeunit {unit!r} is none of {', '.join(SECONDS)}")
    foreign = Foreign(name, "unknown")
    for result in found["results"]:
        times, invalid = result["times"], result["invalidity"]
        if invalid == "correct" and not result["correctness"]:
            invalid = "correctness"
        samples_ms = _numbers(times.get("runtimes"), SECONDS[unit] * 1e3)
        latency_ms = _t4_latency_ms(result, samples_ms) if invalid == "correct" else None
        compile_s = _number(times.get("compilation", times.get("compilation_time"))) * SECONDS[unit]
        device_s = sum(_number(times.get(part)) for part in ("benchmark", "validation")) * SECONDS[unit]
        foreign.add(
            Tried(
                normalise(result["configuration"], "configuration"), samples_ms, latency_ms,
                "" if latency_ms is not None else KINDS.get(invalid, "launch"), invalid, compile_s,
                device_s or sum(samples_ms) / 1e3, _moment(result.get("timestamp")),
            )
        )  # fmt: skip
    return foreign


def _t4_latency_ms(result: Mapping[str, Any], samples_ms: Sequence[float]) -> float | None:
    """Return the measurement called ``time``, ms; where there is none, the samples' mean, as Kernel Tuner has it."""
    for measured in result.get("measurements") or ():
        if measured.get("name") == "time":
            per_s = SECONDS.get(measured.get("unit") or "ms", 1e-3)
            return _latency(_number(measured.get("value")) * per_s * 1e3)
    return _latency(sum(samples_ms) / len(samples_ms)) if samples_ms else None


def _of_cache(found: Mapping[str, Any]) -> Foreign:
    size = found.get("problem_size")
    arguments = {} if size is None else {"problem_size": normalise(size, "problem_size")}
    foreign = Foreign(str(found["kernel_name"]), str(found["device_name"]), arguments)
    names = list(found["tune_params_keys"])
    for entry in found["cache"].values():
        said = next((v for k, v in entry.items() if k not in names and isinstance(v, str) and v in KINDS), "")
        samples_ms = () if said else _numbers(entry.get("times"), 1.0)
        latency_ms = None if said else _latency(_number(entry.get("time")))
        device_s = sum(_number(entry.get(part)) for part in ("benchmark_time", "verification_time")) / 1e3
        foreign.add(
            Tried(
                normalise({name: entry[name] for name in names}, "cache"), samples_ms, latency_ms,
                "" if latency_ms is not None else KINDS.get(said, "launch"), said,
                _number(entry.get("compile_time")) / 1e3, device_s or sum(samples_ms) / 1e3,
                _moment(entry.get("timestamp")),
            )
        )  # fmt: skip
    return foreign


def _number(value: Any) -> float:
    """Return a finite number of zero or more; 0 for all else, such as what was not recorded."""
    fits = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value) and value > 0
    return float(value) if fits else 0.0


def _numbers(values: Any, factor: float) -> tuple[float, ...]:
    return tuple(number * factor for value in values or () if (number := _number(value)))


def _latency(latency_ms: float) -> float | None:
    return latency_ms if 0 < latency_ms < FAILED_MS else None


def _moment(text: Any) -> float:
    try:
        return datetime.fromisoformat(text).timestamp()
    except (TypeError, ValueError):
        return 0.0


def _events(found: Foreign, digest: str) -> Iterator[AnyEvent]:
    """Yield the journal of a run that tried everything in `found`, one after the other."""
    seq, mono, device = 0, 0.0, "imported"
    latest = max((tried.time for tried in found.tried.values()), default=0.0)

    def event(kind: type[Any], seconds: float = 0.0, /, **fields: Any) -> AnyEvent:
        nonlocal seq, mono
        seq, mono = seq + 1, mono + seconds
        return cast(AnyEvent, kind(seq=seq - 1, time=latest, mono=round(mono, 6), **fields))

    yield event(
        RunStarted, schema=SCHEMA, workload=found.kernel, origin="", fingerprint=digest, space=space_hash(found.tried),
        total=len(found.tried), arguments=found.arguments, target=Target("cuda"), devices=(device,),
        strategy="exhaustive", settings={}, versions={},
    )  # fmt: skip
    yield event(DeviceReady, device=DeviceInfo(device, found.device))
    for index, (key, tried) in enumerate(found.tried.items()):
        yield event(CandidateProposed, index=index, key=key, config=tried.config)
        if tried.why == PRUNED:
            yield event(CandidatePruned, index=index, reason=tried.said)
            continue
        failed: FailureKind | None = cast(FailureKind, tried.why) if tried.why else None
        built_s = 0.0 if failed == "compile" else tried.compile_s
        lower_s = tried.compile_s - built_s  # of what did not compile, all of it: there is no other event with seconds
        lowered = {"code_key": key, "facts": StaticFacts(), "seconds": lower_s}
        yield event(CandidateLowered, lower_s, index=index, **lowered)
        if failed == "compile":
            yield event(BuildFailed, index=index, kind=failed, message=tried.said)
            continue
        yield event(ArtifactBuilt, built_s, indices=(index,), file="", seconds=built_s)
        yield event(BenchmarkStarted, index=index, device=device)
        if failed is not None or tried.latency_ms is None:
            yield event(
                BenchmarkFailed, tried.device_s, index=index, device=device, kind=failed or "launch",
                message=tried.said or "no time is recorded",
            )  # fmt: skip
        else:
            timing = _timing(tried.latency_ms, tried.samples_ms)
            fields = {"timing": timing, "checked": False, "seconds": tried.device_s}
            yield event(CandidateMeasured, tried.device_s, index=index, device=device, **fields)
    yield event(RunFinished, wall_s=round(mono, 4), reason="exhausted")


def _timing(latency_ms: float, samples_ms: Sequence[float]) -> Timing:
    """Return a timing whose latency is what the file says: a mean there, and not the samples' median."""
    taken = Timing.of([ms * 1e3 for ms in samples_ms or (latency_ms,)], "imported")
    return Timing(latency_ms, taken.spread, taken.samples_us, taken.method)
