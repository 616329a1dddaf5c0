"""The screen: judges by lowered facts which candidates cannot run, and which are likely to lose."""

from __future__ import annotations

from typing import Literal

from atune.model.artifact import StaticFacts
from atune.model.device import DeviceLimits

Verdict = tuple[Literal["go", "prune", "defer", "wait"], str]
"""``wait``: it is judged again once more is known."""

LIKELY = "likely"
"""The reason of a candidate that was skipped as a likely loser begins so."""
SPILL_REGISTERS = 256
"""A thread has at most 255 registers (CUDA C++ Programming Guide, compute capabilities): an array of 256 must spill."""


def screen(facts: StaticFacts, limits: DeviceLimits) -> Verdict:
    """Judge a lowered candidate against its device. Prunes what cannot launch, and defers what is likely to be slow."""
    if limits.smem_bytes is not None and facts.smem_bytes is not None and facts.smem_bytes > limits.smem_bytes:
        return "prune", f"shared memory: {facts.smem_bytes} bytes a block, the device has {limits.smem_bytes}"
    if limits.threads is not None and facts.threads is not None and facts.threads > limits.threads:
        return "prune", f"threads: {facts.threads} a block, the device takes {limits.threads}"
    if facts.lacking_registers:
        return "prune", f"setmaxnreg: a block waits for {facts.lacking_registers} registers more than it has, for ever"
    if facts.accumulators is not None and facts.accumulators >= SPILL_REGISTERS:
        return "defer", f"{facts.accumulators} registers of accumulators a thread: likely to spill"
    return "go", ""
