"""Known results near to a missing one, and their differences."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from atune.model.candidate import config_key
from atune.model.former_names import BENCHMARK
from atune.storage.result_key import CacheEntry, ResultKey

MOST = 3
"""Most near results returned."""


class NearResult(msgspec.Struct, frozen=True, kw_only=True):
    """A known result of the same kernel, its origin, and a clause on each difference."""

    entry: CacheEntry
    source: str
    differences: tuple[str, ...]


def nearest(
    keys: Sequence[ResultKey],
    known: Iterable[tuple[str, CacheEntry]],
    *,
    shipped: Collection[str] = (),
    space: Collection[str] | None = None,
) -> list[NearResult]:
    """Return the known results of the same kernel (by name or source) that differ least, at most `MOST`.

    `keys`: the wanted keys, with normalised and with verbatim sources. `known`: results with their origins. `shipped`:
    origins for which versions, settings and the space's hash do not count. The configurations of shipped results must
    be in `space`, which holds the keys of configurations.
    """
    wanted = keys[0]
    found = []
    for source, entry in known:
        if entry.parts.kernel != wanted.kernel and entry.parts.source not in {key.source for key in keys}:
            continue
        said = _code(keys, entry.parts) + _place(wanted, entry.parts)
        if source not in shipped:
            said += _circumstances(wanted, entry.parts)
        elif space is not None and config_key(entry.config) not in space:
            said.append("its configuration is not in the space")
        found.append(NearResult(entry=entry, source=source, differences=tuple(said)))
    return sorted(found, key=lambda near: (len(near.differences), -near.entry.created))[:MOST]


def _code(keys: Sequence[ResultKey], parts: ResultKey) -> list[str]:
    if parts.fingerprint in {key.fingerprint for key in keys}:
        return []
    if parts.source in {key.source for key in keys}:
        return ["its reference, inputs, setup or check, or the tolerances, changed since"]
    return ["the kernel's source, or what it uses, changed since"]


def _place(wanted: ResultKey, parts: ResultKey) -> list[str]:
    said = _changes(parts.problem, wanted.problem, "the problem")
    if parts.device != wanted.device:
        said.append(f"it is for {parts.device}, and here is {wanted.device}")
    if parts.target != wanted.target:
        said.append(f"its target is {parts.target}, and here it is {wanted.target}")
    return said


def _circumstances(wanted: ResultKey, parts: ResultKey) -> list[str]:
    said = _changes(parts.versions, wanted.versions, "versions")
    said += _changes(_today(parts.measuring), _today(wanted.measuring), "settings")
    said += _changes(parts.search, wanted.search, "the search")
    return said if parts.space == wanted.space else [*said, "its space has other configurations"]


def _today(measuring: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings under their current names."""
    return {BENCHMARK.get(name, name): value for name, value in measuring.items()}


def _changes(was: Any, now: Any, what: str) -> list[str]:
    """Return a clause for each name whose value differs. Values that are not mappings get one clause."""
    if not isinstance(was, Mapping) or not isinstance(now, Mapping):
        return [] if _same(was, now) else [f"{what} was {_words(was)} and is {_words(now)}"]
    names = [name for name in {**was, **now} if not _same(was.get(name, _NONE), now.get(name, _NONE))]
    return [f"{name} was {_words(was.get(name, _NONE))} and is {_words(now.get(name, _NONE))}" for name in names]


_NONE = "not there"


def _same(one: Any, other: Any) -> bool:
    return msgspec.json.encode(one, order="deterministic") == msgspec.json.encode(other, order="deterministic")


def _words(value: Any) -> str:
    text = value if value is _NONE else msgspec.json.encode(value).decode()
    return text if len(text) <= 80 else f"{text[:80]}…"
