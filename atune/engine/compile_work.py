"""How long compiles take, relative to each other: estimates from the facts that lowering finds."""

from __future__ import annotations

import bisect
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from atune.engine.screen import SPILL_REGISTERS
from atune.model.artifact import Lowered

HEAVY_REGISTERS = 512
"""Accumulators, in registers a thread, from which a compile is among the longest. Its time cannot be predicted, and
parsing headers is a small part of it."""
WORK = ((HEAVY_REGISTERS, 6.0), (SPILL_REGISTERS, 2.5))
"""Pairs of accumulators, in registers a thread, and the relative compile time from that number on. Measured: 2.3 s (1.3
to 4) and 0.9 s, where fewer accumulators took 0.35 s."""
LONG = 4.0
"""A device source this many times longer than the median compiles far longer than others. One such kernel took 51 s."""
LONG_BYTES = 32_000
"""Shorter sources compile quickly, even if their neighbours are much shorter still."""


@dataclass
class CompileWork:
    """Estimates compile times, in units of one kernel with a short source and few accumulators."""

    lengths: list[int] = field(default_factory=list)
    """Lengths of the device sources seen, in bytes, sorted."""

    def saw(self, lowered: Lowered) -> None:
        """Add a candidate's source length."""
        if lowered.facts.source_bytes is not None:
            bisect.insort(self.lengths, lowered.facts.source_bytes)

    def is_long(self, lowered: Lowered) -> bool:
        """Tell whether a candidate's source is far longer than its neighbours'."""
        length = lowered.facts.source_bytes or 0
        return length >= LONG_BYTES and length >= LONG * self._median

    def of(self, lowered: Lowered) -> float:
        """Return the time to compile one candidate, in compiles."""
        by_registers = next((work for registers, work in WORK if accumulators(lowered) >= registers), 1.0)
        if not self.is_long(lowered):
            return by_registers
        return max(by_registers, (lowered.facts.source_bytes or 0) / max(1, self._median))

    def of_all(self, queue: Sequence[Lowered], enough: float = math.inf) -> float:
        """Sum up the compile times of `queue`, counting a shared compile once. Stops at `enough`."""
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
    """Return a key that is equal for candidates that share one compile."""
    return lowered.compile_key or lowered.index
