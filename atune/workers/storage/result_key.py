"""The dependencies of a tuning's result, a result as data, and files of exported results."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import msgspec

from atune.errors import UsageError
from atune.model.candidate import Config, thaw

SCHEMA = 1
"""Version of exported files."""


class ResultKey(msgspec.Struct, frozen=True, kw_only=True):
    """All dependencies of a result.

    `kernel`: its name, for people. `source`: SHA-256 of the kernel's source and closure alone. `fingerprint`: the same
    with its callbacks. `problem`: the problem's key, as data. `device`: the model. `measuring`: settings that affect
    a measurement. `search`: settings that affect the choice of the winner. `space`: SHA-256 of the candidates' keys
    in order.
    """

    kernel: str
    source: str
    fingerprint: str
    problem: Any
    device: str
    target: str
    versions: Mapping[str, str]
    measuring: Mapping[str, Any]
    search: Mapping[str, Any]
    space: str

    @property
    def work(self) -> str:
        """Hash of the dependencies of a single measurement."""
        return _digest(self, ("kernel", "search", "space"))

    @property
    def text(self) -> str:
        """Hash of the whole key, 32 hex digits."""
        return _digest(self, ("kernel",))


class CacheEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One result in the cache, as in `atune cache show` and in exported files. Data only."""

    parts: ResultKey
    config: Config
    latency_ms: float | None = None
    reference_ms: float | None = None
    created: float = 0.0
    """Wall clock, seconds since the Unix epoch."""

    @property
    def key(self) -> str:
        return self.parts.text


class _Exported(msgspec.Struct):
    format: Literal["atune results"]
    schema: int
    entries: list[CacheEntry]


def exported(entries: Iterable[CacheEntry]) -> bytes:
    """Return results as JSON that can be shipped with a library."""
    found = _Exported("atune results", SCHEMA, sorted(entries, key=lambda e: e.key))
    return msgspec.json.format(msgspec.json.encode(found), indent=1)


def read_exported(data: bytes) -> list[CacheEntry]:
    """Return the entries of a file that `ResultCache.export` wrote. Raises `UsageError` on anything else."""
    try:
        found = msgspec.json.decode(data, type=_Exported)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise UsageError(
            f"this is not a file of exported results ({error}): give one that `atune cache export` wrote"
        ) from None
    if found.schema > SCHEMA:
        raise UsageError(f"a newer atune exported these results (schema {found.schema}): update atune")
    return [msgspec.structs.replace(entry, config=thaw(entry.config)) for entry in found.entries]


def _digest(key: ResultKey, without: Sequence[str]) -> str:
    parts = {name: value for name, value in msgspec.to_builtins(key).items() if name not in without}
    return hashlib.sha256(msgspec.json.encode(parts, order="deterministic")).hexdigest()[:32]
