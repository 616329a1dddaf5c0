"""How long compiles take, beside each other: estimates from what lowering tells."""

from __future__ import annotations

import bisect
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from atune.engine.screen import SPILL_REGISTERS
from atune.model.artifact import Lowered

HEAVY_REGISTERS = 512
"""Accumulators, in registers a thread, that make a compile one of the longest: nobody knows how long, and headers are
a small part of it."""
WORK = ((HEAVY_REGISTERS, 6.0), (SPILL_REGISTERS, 2.5))
"""Accumulators, in registers a thread, and how long the compile of a kernel with so many takes beside one with fewer:
2.3 s (1.3 to 4) and 0.9 s were seen for 0.35 s."""
LONG = 4.0
"""How many times longer than the median a device source is that takes far longer than others: one such kernel was
compiled for 51 s beside four neighbours."""
LONG_BYTES = 32_000
"""Shorter sources are compiled quickly, however short their neighbours are."""


@dataclass
class CompileWork:
    """Estimates compiles. The unit is the compile of a kernel with a short source and few accumulators."""

    lengths: list[int] = field(default_factory=list)
    """Lengths of the device sources seen, in order."""

    def saw(self, lowered: Lowered) -> None:
        """Learn of a further candidate."""
        if lowered.facts.source_bytes is not None:
            bisect.insort(self.lengths, lowered.facts.source_bytes)

    def is_long(self, lowered: Lowered) -> bool:
        """Tell whether a candidate's source is far longer than its neighbours'."""
        length = lowered.facts.source_bytes or 0
        return length >= LONG_BYTES and length >= LONG * self._median

    def of(self, lowered: Lowered) -> float:
        """Return what compiling one candidate takes."""
        by_registers = next((work for registers, work in WORK if accumulators(lowered) >= registers), 1.0)
        if not self.is_long(lowered):
            return by_registers
        return max(by_registers, (lowered.facts.source_bytes or 0) / max(1, self._median))

    def of_all(self, queue: Sequence[Lowered], enough: float = math.inf) -> float:
        """Sum up the compiles that `queue` takes, one for all that share it, as far as `enough`."""
        compiles: set[str | int] = set()
        work = 0.0
        for lowered in queue:
            if (one := compile_of(lowered)) not in compiles:
                compiles.add(one)
                work += self.of(lowered)
                if work >= enough:
                    break
        return work

    @property
    def _median(self) -> float:
        return self.lengths[(len(self.lengths) - 1) // 2] if self.lengths else math.inf


def accumulators(lowered: Lowered) -> int:
    return lowered.facts.accumulators or 0


def compile_of(lowered: Lowered) -> str | int:
    """Return what is equal for candidates that take one compile together."""
    return lowered.compile_key or lowered.index
