"""Whether parsing the headers ahead pays, or nvcc compiles, which parses them for each group. Decided from costs."""

from __future__ import annotations

import math

import msgspec

from atune.engine.scheduler import SHARES, bounded


class CompileCosts(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds of one core. Defaults were measured for TileLang GEMMs on one x86-64 core; `scaled` fits the machine."""

    lower_s: float = 0.35
    """Lowering one candidate."""
    member_s: float = 0.2
    """Each member of a group, in either compiler and the linker."""
    nvcc_s: float = 2.0
    """nvcc for a group, whatever is in it: it parses the headers."""
    header_s: float = 1.6
    """Parsing the headers, once."""
    parsed_s: float = 0.3
    """A group, whatever is in it, once the headers are parsed."""

    def scaled(self, lower_s: float) -> CompileCosts:
        """Return these costs on a machine where lowering a candidate takes `lower_s`."""
        factor = lower_s / self.lower_s
        return CompileCosts(
            lower_s=lower_s,
            member_s=self.member_s * factor,
            nvcc_s=self.nvcc_s * factor,
            header_s=self.header_s * factor,
            parsed_s=self.parsed_s * factor,
        )


def estimate(candidates: int, workers: int, costs: CompileCosts) -> tuple[float, float]:
    """Return the seconds that `candidates` take on so many workers with nvcc, and with headers that are parsed already.

    Groups are those of the scheduler where no candidates share a compile. The headers are parsed while the other
    workers lower.
    """
    groups = _groups(candidates, workers)
    work = candidates * (costs.lower_s + costs.member_s) / workers
    rounds = math.ceil(groups / workers)
    nvcc_s = work + rounds * costs.nvcc_s
    lowering_s = candidates * costs.lower_s / workers
    # Parsing costs one worker's time, and is waited for where lowering ends before.
    waits_s = max(costs.header_s - lowering_s, 0.0)
    return nvcc_s, work + costs.header_s / workers + waits_s + rounds * costs.parsed_s


def _groups(candidates: int, workers: int) -> int:
    """Return about how many groups the scheduler makes of kernels with few accumulators, lowered by then."""
    left, groups = candidates, 0
    while left > 0:
        left -= math.ceil(bounded(left / (SHARES * workers), groups / workers))
        groups += 1
    return max(groups, min(candidates, workers))


def choose(candidates: int, workers: int, costs: CompileCosts) -> tuple[bool, str]:
    """Return whether parsing the headers once pays, and why."""
    nvcc_s, parsed_s = estimate(candidates, workers, costs)
    many = f"{candidates} candidates on {workers} workers"
    return parsed_s < nvcc_s, f"{many}: about {nvcc_s:.1f} s with nvcc, {parsed_s:.1f} s with the headers parsed once"
