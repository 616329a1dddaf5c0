"""Axes that changed no code: candidates that differ in them alone were lowered to the same kernel."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

import msgspec

from atune.model.candidate import Config

Code = tuple[Config, str]
"""A configuration, and the key of its code."""


class InertAxis(msgspec.Struct, frozen=True, kw_only=True):
    """An axis none of whose values made a difference to the code, and how many candidates tell."""

    axis: str
    candidates: int

    def describe(self) -> str:
        """Return it as a line of text."""
        return f"axis {self.axis} changed no code in {self.candidates:,} candidates"


def inert_axes(codes: Iterable[Code]) -> tuple[InertAxis, ...]:
    """Return the axes that changed no code, in their own order.

    Candidates that differ in one axis alone are compared. An axis is inert where all of these have the same code, and
    each of its values is among them. One that a configuration lacks has a value of its own.
    """
    lowered = [(config, key) for config, key in codes if key]
    names = dict.fromkeys(name for config, _ in lowered for name in config)
    texts = [{name: _text(config, name) for name in names} for config, _ in lowered]
    keys = [key for _, key in lowered]
    found = ((name, _compared(name, texts, keys)) for name in names)
    return tuple(InertAxis(axis=name, candidates=count) for name, count in found if count)


def _compared(name: str, texts: list[dict[str, bytes]], keys: list[str]) -> int:
    """Return how many candidates show that `name` changes no code; 0 where one shows otherwise, or too few tell."""
    values = {text[name] for text in texts}
    if len(values) < 2:
        return 0
    groups: dict[tuple[bytes, ...], list[int]] = defaultdict(list)
    for place, text in enumerate(texts):
        groups[tuple(value for other, value in text.items() if other != name)].append(place)
    together = [group for group in groups.values() if len(group) > 1]
    if any(len({keys[place] for place in group}) > 1 for group in together):
        return 0
    seen = {texts[place][name] for group in together for place in group}
    return sum(map(len, together)) if seen == values else 0


def _text(config: Config, name: str) -> bytes:
    return msgspec.json.encode(config[name], order="deterministic") if name in config else b""
