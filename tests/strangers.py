"""Mutations of JSON as a stranger may write it, whose checksums fit."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

STRANGE: tuple[Any, ...] = (
    None, True, 0, -1, 1, 2**31, 2**53, 2**62, 2**70, -(10**30), 0.0, 1e-300, 1e9, 1e300, -1e300, "", "\0", "a\0b",
    "..", "/etc/passwd", "\x1b[2J", "a" * 9999, "9" * 5000, "float" + "9" * 5000, "n-9", "n//(n-n)", "(" * 999,
    "n" + "*n" * 999, [], [[]], [None], [1], [1e300], [0], ["n"], {}, {"": None}, {"a": {"b": []}}, {"n": 2**63},
    {"$dtype": 1}, {"$dynamic": "n"}, {"x": [[[[{}]]]]}, "sm_90a", "cuda", "measured", "mismatch",
)  # fmt: skip


def mutated(value: Any, random: Random, strange: Sequence[Any] = STRANGE) -> Any:
    """Return a value with one of those in it replaced by a `strange` one, removed, repeated or moved."""
    if not isinstance(value, dict | list) or not value or random.random() < 0.1:
        return random.choice(strange)
    key = random.choice(list(value) if isinstance(value, dict) else range(len(value)))
    copy = value.copy()
    if random.random() < 0.1:
        del copy[key]
    elif isinstance(copy, dict) and random.random() < 0.1:
        copy[random.choice([one for one in strange if isinstance(one, str)])] = copy[key]
    elif isinstance(copy, list) and random.random() < 0.1:
        copy = copy * 3
    else:
        copy[key] = mutated(copy[key], random, strange)
    return copy
