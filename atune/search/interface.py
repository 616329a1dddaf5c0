"""The strategy's protocol, and what it is given to know about the space."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from atune.errors import UsageError
from atune.model.candidate import Config

AHEAD = 2
"""How many candidates for each compile worker a learning strategy may have outstanding."""
DUPLICATE = "duplicate"
"""The reason of a candidate that compiles to the same code as another: that one has the latency. It did not fail."""


@runtime_checkable
class Strategy(Protocol):
    """Proposes candidates by index. No two of its methods are ever called at the same time.

    A resumed run tells a new object all earlier outcomes before it asks, also of candidates that this object did not
    propose. What it proposes of these is passed over. Three attributes are optional. `begin` gets the `Searched` before
    any other call. `most_outstanding`, an int, is how many proposed candidates may lack an outcome at that moment.
    `expected_best()` returns the best latency, ms, that it now expects of the space, or None. It changes nothing.
    """

    name: str

    def ask(self) -> int | None:
        """Return the index to try next, each at most once, or None at the end."""
        ...

    def tell(self, index: int, latency_ms: float | None, reason: str = "") -> None:
        """Learn a candidate's latency, ms, or None if it has none of its own, for `reason`.

        The reason is its kind of failure (such as ``timeout``, ``mismatch`` or ``compile``), ``pruned`` for a device
        limit, or `DUPLICATE`. A candidate may be told again; then the new latency counts.
        """
        ...


@dataclass(frozen=True)
class Searched:
    """The space to search, by the candidates' indices.

    `budget`: candidates that will be tried at most, where that is known. `prior`: an estimate for each, in milliseconds
    or any other unit in which less is better; those without one come last. `facts`: numbers known of candidates beside
    their axes. `default`: the default configuration's index, where the space holds it. `elsewhere`: a
    candidate's latency on other problems or devices, as a multiple of the best there. It may be wrong here.
    """

    configs: Mapping[int, Config]
    seed: int = 0
    budget: int | None = None
    prior: Mapping[int, float] | None = None
    facts: Mapping[int, Mapping[str, float]] = field(default_factory=dict)
    elsewhere: Mapping[int, float] = field(default_factory=dict)
    default: int | None = None


def by_prior(indices: Sequence[int], prior: Mapping[int, float]) -> list[int]:
    """Return `indices` by their estimate, the best first; those without one (or NaN) last, in order."""

    def estimate(index: int) -> float:
        value = float(prior.get(index, float("inf")))
        return value if value == value else float("inf")

    return sorted(indices, key=estimate)


def check_strategy(strategy: object) -> None:
    """Raise `UsageError` where `strategy` is no object that keeps the protocol."""
    name = getattr(strategy, "name", None)
    lacking = [method for method in ("ask", "tell") if not callable(getattr(strategy, method, None))]
    if isinstance(strategy, type):
        raise UsageError(f"strategy {strategy.__name__} is a class: give an object of it, {strategy.__name__}(…)")
    if lacking or not (isinstance(name, str) and name):
        missing = [*lacking, *([] if isinstance(name, str) and name else ["name"])]
        raise UsageError(
            f"strategy {strategy!r}: it has no {' and no '.join(missing)}; give a name, or an object with a name "
            "(text), ask() and tell(index, latency_ms, reason)"
        )
