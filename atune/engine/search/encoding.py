"""Encodes configurations as numbers, finds their neighbours along the axes, and draws them so that values spread."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from atune.engine.search.interface import by_prior
from atune.model.candidate import Config
from atune.model.space import text_of

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_ABSENT = object()
"""Marks configurations that have no value on an axis."""
SPREAD = 4096
"""How many draws are spread. Later ones are plain, because that many cover all axes anyway."""
TRIES = 48
"""If a drawn point is no candidate, the one with the rarest values of this many others replaces it."""
MOST_COLUMNS = 256
"""An axis without order gets a column for each of at most this many values."""


class Axis:
    """One axis, with its values in order: numbers by size, others by first occurrence."""

    def __init__(self, name: str, configs: Sequence[Config]) -> None:
        self.name = name
        values: dict[bytes, Any] = {}
        for config in configs:
            value = config.get(name, _ABSENT)
            values.setdefault(_text(value), value)
        self.ordered = all(isinstance(v, (int, float)) for v in values.values())
        """Whether all values are numbers or booleans."""
        ranked = sorted(values, key=lambda text: values[text]) if self.ordered else list(values)
        self.values = [values[text] for text in ranked]
        self._positions = {text: position for position, text in enumerate(ranked)}

    def position(self, config: Config) -> int:
        return self._positions[_text(config.get(self.name, _ABSENT))]

    @property
    def logarithmic(self) -> bool:
        return self.ordered and min(self.values) > 0


class Encoding:
    """Encodes candidates 0 … n-1, the positions in `configs`, on the axes that have more than one value.

    Positive numbers become their logarithm to base 2, and other numbers stay. Other axes get a column for each value.
    """

    def __init__(self, configs: Sequence[Config]) -> None:
        names = dict.fromkeys(name for config in configs for name in config)
        axes = [Axis(name, configs) for name in names]
        varied = [axis for axis in axes if len(axis.values) > 1]
        self.axes = varied
        self.places = [tuple(axis.position(config) for axis in varied) for config in configs]
        """Each candidate's position on each axis."""
        self.at: dict[tuple[int, ...], int] = {}
        for candidate, place in enumerate(self.places):
            self.at.setdefault(place, candidate)

    def neighbours(self, candidate: int) -> list[int]:
        """Return the candidates that differ in one axis: by one step along numbers, by any value along others."""
        place = self.places[candidate]
        found = dict[int, None]()
        for number, axis in enumerate(self.axes):
            for way in self._ways(axis, place[number]):
                for step in way:
                    there = self.at.get((*place[:number], step, *place[number + 1 :]))
                    if there is not None:
                        found[there] = None
                        break
        found.pop(candidate, None)
        return list(found)

    def _ways(self, axis: Axis, here: int) -> Iterator[Sequence[int]]:
        if axis.ordered:
            yield range(here - 1, -1, -1)
            yield range(here + 1, len(axis.values))
        else:
            yield from ([other] for other in range(len(axis.values)) if other != here)

    def spread_order(self, seed: int) -> Iterator[int]:
        """Yield each candidate once: first those that have each value of each axis about equally often, then the rest.

        Each axis is drawn in rounds, as in a Latin hypercube (McKay, Beckman and Conover, Technometrics 1979): a round
        has each value once. Where a drawn point is no candidate, one of `TRIES` drawn ones takes its place.
        """
        rng = random.Random(seed)
        left = list(range(len(self.places)))
        rng.shuffle(left)
        lengths = [len(axis.values) for axis in self.axes]
        seen, counts, rounds = set[int](), [Counter[int]() for _ in lengths], [list[int]() for _ in lengths]

        def met(candidate: int) -> int:
            """Return how often a candidate's values were drawn, those of long axes weighing more."""
            place = self.places[candidate]
            return sum(count[digit] * length for count, digit, length in zip(counts, place, lengths, strict=True))

        for _ in range(min(SPREAD, len(left) // 4)):
            for values, length in zip(rounds, lengths, strict=True):
                values.extend([] if values else rng.sample(range(length), length))
            found = self.at.get(tuple(values.pop() for values in rounds))
            if found is None or found in seen:
                drawn = [candidate for candidate in rng.choices(left, k=TRIES) if candidate not in seen]
                found = min(drawn, key=met, default=None)
            if found is not None:
                seen.add(found)
                for count, digit in zip(counts, self.places[found], strict=True):
                    count[digit] += 1
                yield found
        yield from (candidate for candidate in left if candidate not in seen)

    @cached_property
    def features(self) -> NDArray[np.float64]:
        """Features of shape (candidates, columns)."""
        import numpy as np

        places = np.array(self.places, dtype=np.int64).reshape(len(self.places), len(self.axes))
        columns = [_columns(axis, places[:, number]) for number, axis in enumerate(self.axes)]
        return np.concatenate(columns, axis=1) if columns else np.zeros((len(self.places), 1))


def _columns(axis: Axis, positions: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return one axis' columns, of shape (positions, columns)."""
    import numpy as np

    if axis.ordered:
        values = np.array([float(axis.values[position]) for position in positions])
        return (np.log2(values) if axis.logarithmic else values)[:, None]
    if len(axis.values) > MOST_COLUMNS:
        return positions.astype(np.float64)[:, None]
    found: NDArray[np.float64] = np.eye(len(axis.values))[positions]
    return found


def more_columns(
    indices: Sequence[int], prior: Mapping[int, float] | None, facts: Mapping[int, Mapping[str, float]]
) -> NDArray[np.float64]:
    """Return columns for the ranks of the prior's estimates and for facts. Unknown values are below all known ones."""
    import numpy as np

    columns: list[list[float]] = []
    if prior is not None:
        ranks = {index: float(rank) for rank, index in enumerate(by_prior(indices, prior))}
        columns.append([ranks[index] for index in indices])
    for name in sorted({name for known in facts.values() for name in known}):
        values = [float(facts.get(index, {}).get(name, float("nan"))) for index in indices]
        least = min((value for value in values if value == value), default=0.0)
        columns.append([value if value == value else least - 1.0 for value in values])
    return np.array(columns, dtype=np.float64).T if columns else np.zeros((len(indices), 0))


def _text(value: Any) -> bytes:
    return b"" if value is _ABSENT else text_of(value)
