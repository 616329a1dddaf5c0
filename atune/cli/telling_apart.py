"""How lists of results tell entries apart: keys as arguments by name, and in what else entries of one key differ."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any

import msgspec

from atune.journal.printing import describe_config, printable
from atune.storage.result_key import CacheEntry, ResultKey

DIGITS = 6
"""Digits of a hash that are shown: enough to see that two differ."""
HASHES = ("source", "fingerprint", "space")
WORDS = {"fingerprint": "callbacks"}
"""Names that people read for parts of the key, where they differ from the part's own."""


def key_words(problem: Any) -> str:
    """Return a key as arguments by name, such as ``M=64, dtype=float32``."""
    if not isinstance(problem, Mapping):
        return printable(repr(problem))
    if not problem:
        return "no arguments"
    return printable(", ".join(f"{name}={_value(value)}" for name, value in problem.items()))


def differences(entries: Sequence[CacheEntry]) -> list[str]:
    """Return for each entry in what it differs from those of the same kernel, key, device and target; often nothing."""

    def same(place: int) -> tuple[str, str, str, str]:
        parts = entries[place].parts
        return parts.kernel, msgspec.json.encode(parts.problem).decode(), parts.device, parts.target

    found = [""] * len(entries)
    for _, group in groupby(sorted(range(len(entries)), key=same), key=same):
        places = list(group)
        told = _told([entries[place].parts for place in places])
        for place, words in zip(places, told, strict=True):
            found[place] = words
    return found


def _told(keys: Sequence[ResultKey]) -> list[str]:
    facts = [dict(_facts(key)) for key in keys]
    names = dict.fromkeys(name for known in facts for name in known)
    telling = [name for name in names if len({repr(known.get(name)) for known in facts}) > 1]
    if any(name == "source" for name in telling):  # the callbacks' hash covers the source too
        telling = [name for name in telling if name != "fingerprint"]
    return [", ".join(f"{WORDS.get(n, n)} {_value(known.get(n))}" for n in telling) for known in facts]


def _facts(key: ResultKey) -> Iterable[tuple[str, Any]]:
    yield from ((name, getattr(key, name)[:DIGITS]) for name in HASHES)
    for part in (key.versions, key.search, key.measuring):
        yield from part.items()


def _value(value: Any) -> str:
    if isinstance(value, Mapping):
        if len(value) == 1 and (name := next(iter(value))).startswith("$"):
            return str(value[name])  # a dtype, or what else JSON has no word for
        return f"({describe_config(dict(value))})"
    return "none" if value is None else printable(value if isinstance(value, str) else repr(value))
