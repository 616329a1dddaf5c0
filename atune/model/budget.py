"""Budgets: when a run ends. They are checked when they are made."""

from __future__ import annotations

import math
from typing import Annotated, Any

from atune.errors import UsageError
from atune.model.options import Option, Settings

_BUDGETS = "give a number of candidates (40), a share of them (10%), or a time (90s)"


def _percent(where: str, value: float) -> float:
    if value > 100:
        raise UsageError(f"{where} must be 100 at most, got {value!r}")
    return value


class Budget(Settings, frozen=True, kw_only=True):
    """Limits of a run, of which the first to be reached ends it."""

    # fmt: off
    candidates: Annotated[int | None, Option("How many candidates are tried.", zero=False)] = None
    seconds: Annotated[float | None, Option("Seconds of the run.", zero=False)] = None
    percent: Annotated[float | None, Option(
        "How many candidates are tried, in percent of the space.", zero=False, check=_percent,
    )] = None
    # fmt: on

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
