"""When a run ends. Budgets are checked when they are made."""

from __future__ import annotations

import math
from typing import Any

import msgspec

from atune.errors import UsageError
from atune.model.checks import SettingsMeta, positive

_BUDGETS = "give a number of candidates (40), a share of them (10%), or a time (90s)"


class Budget(msgspec.Struct, frozen=True, kw_only=True, metaclass=SettingsMeta):
    """Limits of a run, of which the first to be reached ends it.

    `candidates`: how many are tried. `percent`: the same, as a share of the space. `seconds`: of the run.

    Raises `UsageError` for an impossible value.
    """

    candidates: int | None = None
    seconds: float | None = None
    percent: float | None = None

    def __post_init__(self) -> None:
        positive("Budget", "candidates", self.candidates, optional=True, integral=True)
        for name in ("seconds", "percent"):
            positive("Budget", name, getattr(self, name), optional=True)
        if self.percent is not None and self.percent > 100:
            raise UsageError(f"Budget: percent must be 100 at most, got {self.percent!r}")

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
        """Return it for headers and keys."""
        percent = {} if self.percent is None else {"percent": self.percent}
        return {"candidates": self.candidates, "seconds": self.seconds, **percent}

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
