"""When a run ends. Budgets are checked when they are made."""

from __future__ import annotations

import math
from typing import Any

import msgspec

from atune.errors import UsageError
from atune.model.checks import SettingsMeta, positive

_BUDGETS = "give a number of candidates (40), a share of them (10%), or a time (90s)"
AUDITED = 0.1
"""Default share of the candidates skipped as likely to lose that an audit measures."""
AUDITED_LEAST = 3
"""Minimum of candidates that an audit measures, if that many were skipped."""


class Budget(msgspec.Struct, frozen=True, kw_only=True, metaclass=SettingsMeta):
    """Limits of a run, of which the first to be reached ends it.

    `candidates`: how many are tried. `percent`: the same, as a share of the space. `seconds`: of the run.
    `audit`: measure this share of the candidates skipped as likely to lose, after all others.

    Raises `UsageError` for an impossible value.
    """

    candidates: int | None = None
    seconds: float | None = None
    percent: float | None = None
    audit: float | None = None

    def __post_init__(self) -> None:
        positive("Budget", "candidates", self.candidates, optional=True, integral=True)
        for name in ("seconds", "percent", "audit"):
            positive("Budget", name, getattr(self, name), optional=True)
        if self.percent is not None and self.percent > 100:
            raise UsageError(f"Budget: percent must be 100 at most, got {self.percent!r}")
        if self.audit is not None and self.audit > 1:
            raise UsageError(f"Budget: audit is a share, such as 0.1 for 10 %, 1 at most, got {self.audit!r}")

    @property
    def limited(self) -> bool:
        """Whether it can end a run before every candidate is tried."""
        return any(limit is not None for limit in (self.candidates, self.seconds, self.percent))

    def most(self, total: int) -> int | None:
        """Return how many of `total` candidates it admits, at least one; None without such a limit."""
        share = None if self.percent is None else max(1, math.ceil(round(total * self.percent / 100, 6)))
        return min((most for most in (self.candidates, share) if most is not None), default=None)

    def used_up(self, wall_s: float) -> bool:
        """Tell whether the time limit is reached, from the run's wall seconds."""
        return self.seconds is not None and wall_s >= self.seconds

    def as_data(self) -> dict[str, Any]:
        """Return it for headers and keys. Newer fields appear only if they are set, because older keys lack them."""
        later = {name: value for name in _LATER if (value := getattr(self, name)) is not None}
        return {"candidates": self.candidates, "seconds": self.seconds, **later}

    @classmethod
    def parse(cls, text: str | int | float | Budget | None) -> Budget:
        """Read ``40`` (candidates), ``"10%"``, or ``"90s"`` / ``"2m"`` (time). Raises `UsageError` for others."""
        if text is None:
            return cls()
        if isinstance(text, Budget):
            return text
        if isinstance(text, int):
            return cls(candidates=text)
        if not isinstance(text, str):
            raise UsageError(f"budget {text!r}: {_BUDGETS}")
        try:
            if text[-1:] in ("s", "m", "h"):
                return cls(seconds=float(text[:-1]) * {"s": 1, "m": 60, "h": 3600}[text[-1]])
            return cls(percent=float(text[:-1])) if text.endswith("%") else cls(candidates=int(text))
        except (TypeError, ValueError):
            raise UsageError(f"budget {text!r}: {_BUDGETS}") from None

    def having(self, *, audit: float | str | bool | None = None) -> Budget:
        """Return the budget with an audit: a share, as a number or a text such as ``"2%"``, or True.

        Raises `UsageError` for any other value.
        """
        given = {"audit": AUDITED if audit is True else None if audit is False else audit}
        changes = {name: _share(name, value) for name, value in given.items() if value is not None}
        return Budget(**{**msgspec.structs.asdict(self), **changes}) if changes else self


_LATER = ("percent", "audit")


def _share(name: str, value: float | str) -> float:
    """Return a number, or a text such as ``2%``, as a number. Raises `UsageError`."""
    if isinstance(value, str):
        try:
            return float(value[:-1]) / 100 if value.endswith("%") else float(value)
        except ValueError:
            pass
    elif not isinstance(value, bool) and isinstance(value, (int, float)):
        return value
    raise UsageError(f"{name} {value!r}: give a share, such as 2%")
