"""Which compiler makes the device code: nvcc, or NVRTC with a precompiled header. Decided from costs."""

from __future__ import annotations

import math

import msgspec

from atune.scheduler import MAX_GROUP, MIN_GROUP


class CompileCosts(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds of one core. Defaults were measured for TileLang GEMMs on one x86-64 core; `scaled` fits the machine."""

    lower_s: float = 0.35
    """Lowering one candidate."""
    member_s: float = 0.2
    """Each member of a group, in either compiler and the linker."""
    nvcc_s: float = 2.5
    """nvcc for a group, whatever is in it: it parses the headers."""
    header_s: float = 4.0
    """Making the precompiled header, once."""
    nvrtc_s: float = 0.4
    """NVRTC for a group, whatever is in it, once the header is made."""

    def scaled(self, lower_s: float) -> CompileCosts:
        """Return these costs on a machine where lowering a candidate takes `lower_s`."""
        factor = lower_s / self.lower_s
        return CompileCosts(
            lower_s=lower_s,
            member_s=self.member_s * factor,
            nvcc_s=self.nvcc_s * factor,
            header_s=self.header_s * factor,
            nvrtc_s=self.nvrtc_s * factor,
        )


def estimate(candidates: int, lanes: int, costs: CompileCosts, finalists: int = 0) -> tuple[float, float]:
    """Return the seconds that `candidates` take on `lanes` workers with nvcc and with NVRTC.

    Groups are those of the scheduler where no candidates share a compile. NVRTC's header is made while the other lanes
    lower. With it, nvcc compiles the `finalists` at the end.
    """
    groups = _groups(candidates, lanes)
    work = candidates * (costs.lower_s + costs.member_s) / lanes
    rounds = math.ceil(groups / lanes)
    nvcc_s = work + rounds * costs.nvcc_s
    lowering_s = candidates * costs.lower_s / lanes
    # The header costs one lane's time, and is waited for where lowering ends before it is made.
    waits_s = max(costs.header_s - lowering_s, 0.0)
    final_s = costs.nvcc_s + math.ceil(finalists / lanes) * costs.member_s if finalists else 0.0
    return nvcc_s, work + costs.header_s / lanes + waits_s + rounds * costs.nvrtc_s + final_s


def _groups(candidates: int, lanes: int) -> int:
    """Return about how many groups the scheduler makes: each has a share of what is left then."""
    left, groups = candidates, 0
    while left > 0:
        left -= max(MIN_GROUP, min(MAX_GROUP, math.ceil(left / (2 * lanes))))
        groups += 1
    return max(groups, min(candidates, lanes))


def choose(candidates: int, lanes: int, costs: CompileCosts, finalists: int = 0) -> tuple[str, str]:
    """Return ``nvcc`` or ``nvrtc``, and why."""
    nvcc_s, nvrtc_s = estimate(candidates, lanes, costs, finalists)
    name = "nvrtc" if nvrtc_s < nvcc_s else "nvcc"
    why = f"{candidates} candidates on {lanes} workers: about {nvcc_s:.1f} s with nvcc, {nvrtc_s:.1f} s with NVRTC"
    return name, why
