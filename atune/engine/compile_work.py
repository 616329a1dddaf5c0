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
"""A device source this many times longer than the median compiles far longer than others. So do loops of this many
times more iterations a thread. Compilers unroll these. One such kernel took 51 s."""
LONG_BYTES = 32_000
"""Shorter sources compile quickly, even if their neighbours are much shorter still."""
LONG_ITERATIONS = 1024
"""Fewer iterations compile quickly, likewise."""
ITERATIONS = 64.0
"""Iterations a thread that take as long as a compile with few accumulators. Measured: 0.15 s with 16 to 80 iterations,
4 to 5 s with 2,560, 10 to 13 s with 4,096, and 13 to 48 s with 5,120 and 10,240."""


@dataclass
class CompileWork:
    """Estimates compile times, in units of one kernel with a short source and few accumulators."""

    lengths: list[int] = field(default_factory=list)
    """Lengths of the device sources seen, in bytes, sorted."""
    iterations: list[int] = field(default_factory=list)
    """Iterations a thread of the kernels seen, where known, sorted."""
    _many: dict[int, int] = field(default_factory=dict)
    """Iterations of the candidates that have at least `LONG_ITERATIONS`, by index."""

    def saw(self, lowered: Lowered) -> None:
        """Add a candidate's source length, and the iterations of its loops."""
        facts = lowered.facts
        if facts.source_bytes is not None:
            bisect.insort(self.lengths, facts.source_bytes)
        if (iterations := iterations_of(lowered)) is not None:
            bisect.insort(self.iterations, iterations)
            if iterations >= LONG_ITERATIONS:
                self._many[lowered.index] = iterations

    def is_long(self, lowered: Lowered) -> bool:
        """Tell whether a candidate's source or loops are far longer than its neighbours'."""
        return self.has_long_source(lowered) or self.has_long_loops(lowered)

    def has_long_source(self, lowered: Lowered) -> bool:
        length = lowered.facts.source_bytes or 0
        return length >= LONG_BYTES and length >= LONG * _median(self.lengths)

    def has_long_loops(self, lowered: Lowered) -> bool:
        iterations = self._many.get(lowered.index)
        return iterations is not None and iterations >= LONG * _median(self.iterations)

    def of(self, lowered: Lowered) -> float:
        """Return the time to compile one candidate, in compiles."""
        by_registers = next((work for registers, work in WORK if accumulators(lowered) >= registers), 1.0)
        work = max(by_registers, self._many.get(lowered.index, 0) / ITERATIONS)
        if not self.has_long_source(lowered):
            return work
        return max(work, (lowered.facts.source_bytes or 0) / max(1, _median(self.lengths)))

    def of_all(self, queue: Sequence[Lowered], enough: float = math.inf) -> float:
        """Sum up the compile times of `queue`. Stops at `enough`."""
        work = 0.0
        for lowered in queue:
            work += self.of(lowered)
            if work >= enough:
                break
        return work


def _median(ordered: Sequence[int]) -> float:
    """Return the lower median; infinite if there is none."""
    return ordered[(len(ordered) - 1) // 2] if ordered else math.inf


def iterations_of(lowered: Lowered) -> int | None:
    """Return the iterations of its loops a thread; None if they are not known."""
    layouts = lowered.facts.layouts
    return None if layouts is None else layouts.iterations


def accumulators(lowered: Lowered) -> int:
    return lowered.facts.accumulators or 0
