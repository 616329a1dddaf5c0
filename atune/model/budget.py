"""When a run ends, and which candidates it omits. Budgets are checked when they are made."""

from __future__ import annotations

import math
from typing import Any

import msgspec

from atune.errors import UsageError
from atune.model.checks import SettingsMeta, positive

_BUDGETS = "give a number of candidates (40), a share of them (10%), a time (90s), or seconds of devices (20ds)"
AUDITED = 0.1
"""Default share of the candidates skipped as likely to lose that an audit measures."""
AUDITED_LEAST = 3
"""Minimum of candidates that an audit measures, if that many were skipped."""


class Budget(msgspec.Struct, frozen=True, kw_only=True, metaclass=SettingsMeta):
    """Limits of a run, of which the first to be reached ends it; and which candidates to omit.

    `candidates`: how many are tried. `percent`: the same, as a share of the space. `seconds`: of the run.
    `device_seconds`: for which devices were busy with candidates, summed over all devices; the final does not count.
    `until`: end when a further gain above this share (0.02: 2 %) has less than one chance in ten.
    `keep`: try only this many candidates, those that the prior ranks best; below 1 a share of them.
    `audit`: measure this share of the candidates skipped as likely to lose, after all others.

    Raises `UsageError` for an impossible value.
    """

    candidates: int | None = None
    seconds: float | None = None
    percent: float | None = None
    device_seconds: float | None = None
    until: float | None = None
    keep: float | None = None
    audit: float | None = None

    def __post_init__(self) -> None:
        positive("Budget", "candidates", self.candidates, optional=True, integral=True)
        for name in ("seconds", "percent", "device_seconds", "until", "keep", "audit"):
            positive("Budget", name, getattr(self, name), optional=True)
        if self.percent is not None and self.percent > 100:
            raise UsageError(f"Budget: percent must be 100 at most, got {self.percent!r}")
        if self.until is not None and self.until >= 1:
            raise UsageError(f"Budget: until is a share, such as 0.02 for 2 %, below 1, got {self.until!r}")
        if self.audit is not None and self.audit > 1:
            raise UsageError(f"Budget: audit is a share, such as 0.1 for 10 %, 1 at most, got {self.audit!r}")
        if self.keep is not None and self.keep >= 1 and self.keep != int(self.keep):
            raise UsageError(f"Budget: keep is a whole number, or a share below 1, got {self.keep!r}")

    @property
    def limited(self) -> bool:
        """Whether it can end a run before every candidate is tried."""
        ends = (self.candidates, self.seconds, self.percent, self.device_seconds, self.until)
        return any(limit is not None for limit in ends)

    def most(self, total: int) -> int | None:
        """Return how many of `total` candidates it admits, at least one; None without such a limit."""
        share = None if self.percent is None else max(1, math.ceil(round(total * self.percent / 100, 6)))
        counts = (self.candidates, share, self.kept(total))
        return min((most for most in counts if most is not None), default=None)

    def kept(self, total: int) -> int | None:
        """Return how many of `total` candidates `keep` leaves, at least one; None if it leaves all."""
        if self.keep is None:
            return None
        return min(total, max(1, math.ceil(round(total * self.keep, 6)) if self.keep < 1 else int(self.keep)))

    def used_up(self, wall_s: float, device_s: float) -> bool:
        """Tell whether a time limit is reached, from seconds of the run and of its devices."""
        over = self.seconds is not None and wall_s >= self.seconds
        return over or (self.device_seconds is not None and device_s >= self.device_seconds)

    def as_data(self) -> dict[str, Any]:
        """Return it for headers and keys. Newer fields appear only if they are set, because older keys lack them."""
        later = {name: value for name in _LATER if (value := getattr(self, name)) is not None}
        return {"candidates": self.candidates, "seconds": self.seconds, **later}

    @classmethod
    def parse(cls, text: str | int | float | Budget | None) -> Budget:
        """Read ``40`` (candidates), ``"10%"``, ``"90s"`` / ``"2m"`` (time) or ``"20ds"`` (seconds of devices).

        Raises `UsageError` for anything else.
        """
        if text is None:
            return cls()
        if isinstance(text, Budget):
            return text
        if isinstance(text, int):
            return cls(candidates=text)
        if not isinstance(text, str):
            raise UsageError(f"budget {text!r}: {_BUDGETS}")
        try:
            if text.endswith("ds"):
                return cls(device_seconds=float(text[:-2]))
            if text[-1:] in ("s", "m", "h"):
                return cls(seconds=float(text[:-1]) * {"s": 1, "m": 60, "h": 3600}[text[-1]])
            return cls(percent=float(text[:-1])) if text.endswith("%") else cls(candidates=int(text))
        except (TypeError, ValueError):
            raise UsageError(f"budget {text!r}: {_BUDGETS}") from None

    def having(
        self,
        *,
        until: float | str | None = None,
        keep: float | str | None = None,
        audit: float | str | bool | None = None,
    ) -> Budget:
        """Return the budget with the other given limits. Shares are numbers, or texts such as ``"2%"``; an audit may be
        True.

        Raises `UsageError` for any other value.
        """
        given = {"until": until, "keep": keep, "audit": AUDITED if audit is True else None if audit is False else audit}
        changes = {name: _share(name, value) for name, value in given.items() if value is not None}
        return Budget(**{**msgspec.structs.asdict(self), **changes}) if changes else self


_LATER = ("percent", "device_seconds", "until", "keep", "audit")


def _share(name: str, value: float | str) -> float:
    """Return a number, or a text such as ``2%`` or ``40``, as a number. Raises `UsageError`."""
    if isinstance(value, str):
        try:
            return float(value[:-1]) / 100 if value.endswith("%") else float(value)
        except ValueError:
            pass
    elif not isinstance(value, bool) and isinstance(value, (int, float)):
        return value
    raise UsageError(f"{name} {value!r}: give a share, such as 2%" + (", or a number, such as 40" * (name == "keep")))
