"""Choice from costs: parse the headers once in advance, or use nvcc, which parses them for each group."""

from __future__ import annotations

import math

import msgspec

from atune.engine.scheduler import SHARES, bounded


class CompileCosts(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds of one core. Defaults: measured for TileLang GEMMs on one x86-64 core. `scaled` adapts them."""

    lower_s: float = 0.35
    """Lowering one candidate."""
    member_s: float = 0.2
    """Compiling and linking one member of a group, with either compiler."""
    nvcc_s: float = 2.0
    """Fixed cost of nvcc per group, for parsing the headers."""
    header_s: float = 1.6
    """Parsing the headers once."""
    parsed_s: float = 0.3
    """Fixed cost per group with parsed headers."""

    def scaled(self, lower_s: float) -> CompileCosts:
        """Return these costs for a machine that takes `lower_s` to lower a candidate."""
        factor = lower_s / self.lower_s
        return CompileCosts(
            lower_s=lower_s,
            member_s=self.member_s * factor,
            nvcc_s=self.nvcc_s * factor,
            header_s=self.header_s * factor,
            parsed_s=self.parsed_s * factor,
        )


def estimate(candidates: int, workers: int, costs: CompileCosts) -> tuple[float, float]:
    """Return the seconds for `candidates` on `workers` with nvcc, and with headers parsed once.

    The groups are the scheduler's for candidates that share no compile. One worker parses the headers while the
    others lower.
    """
    groups = _groups(candidates, workers)
    work = candidates * (costs.lower_s + costs.member_s) / workers
    rounds = math.ceil(groups / workers)
    nvcc_s = work + rounds * costs.nvcc_s
    lowering_s = candidates * costs.lower_s / workers
    # Parsing costs one worker's time. If lowering ends earlier, the others wait for it.
    waits_s = max(costs.header_s - lowering_s, 0.0)
    return nvcc_s, work + costs.header_s / workers + waits_s + rounds * costs.parsed_s


def _groups(candidates: int, workers: int) -> int:
    """Estimate the number of groups that the scheduler makes of lowered kernels with few accumulators."""
    left, groups = candidates, 0
    while left > 0:
        left -= math.ceil(bounded(left / (SHARES * workers), groups / workers))
        groups += 1
    return max(groups, min(candidates, workers))


def choose(candidates: int, workers: int, costs: CompileCosts) -> tuple[bool, str]:
    """Return whether parsing the headers once pays, and the reason."""
    nvcc_s, parsed_s = estimate(candidates, workers, costs)
    many = f"{candidates} candidates on {workers} workers"
    return parsed_s < nvcc_s, f"{many}: about {nvcc_s:.1f} s with nvcc, {parsed_s:.1f} s with the headers parsed once"
