"""The prior: estimates a candidate's latency from its lowered facts and the device's figures.

Blocks run in rounds: an SM holds as many blocks as its threads, registers and shared memory admit. Two lower bounds
limit a round's time. The first is the time of the busiest resource: tensor cores, arithmetic, shared memory, the L2
cache or the memory. The second is the time of one block alone, which waits for loads unless pipeline stages hide the
loads. The roofline model is by S. Williams et al., https://doi.org/10.1145/1498765.1498785. The estimates are made to
rank candidates, and may be far from measured latencies.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from atune.journal.events import SpaceSurveyed
from atune.model.artifact import BlockWork, Gemm, StaticFacts
from atune.model.device import DeviceInfo, DeviceLimits, Figures, Target, figures_of
from atune.model.measurement import operand_rate

CAN_RUN = "can_run"
"""Name of the fact that is 0 for kernels that cannot run, and 1 for other kernels."""
SHARED_BYTES = 128
"""Bytes per clock that an SM's shared memory moves (CUDA C++ Programming Guide, 32 banks of 4 bytes)."""
L2_BYTES = 64
"""Most bytes per clock that an SM gets from the L2 cache, since the V100 («A100 Tensor Core GPU Architecture»)."""
L2_SHARE = 0.57
"""Share of `L2_BYTES` that an SM gets when all SMs read at once. Assumed, because no data sheet gives it."""
MEMORY_SHARE = 0.92
"""Share of the memory's nominal rate that a copy reaches. Assumed."""
TENSOR_SHARE = 0.8
"""Share of their rate at the highest clock that tensor cores sustain, because power limits the clock."""
L2_PARTITIONS = 2
"""Partitions of the L2 cache, each next to its share of the SMs («A100 Tensor Core GPU Architecture»)."""
SAVED_SHARE = 0.1
"""Share of the L2 cache's work that it saves if SMs next to the same partition read the same bytes."""
OPERATION_INSTRUCTIONS = 1.3
"""Instructions per operation, with the necessary conversions, predicates and addresses. Fitted to recordings."""
COPY_OPERATIONS = 8.0
"""Operations with which a thread copies a vector of a tile: addresses, a guard, a load and a store. Fitted."""
UNEVEN_FACTOR = 4.0
"""Factor by which they increase if rows cannot be divided by shifts."""
SPECIAL_LANES = 16
"""Exponentials and similar operations per clock of an SM (CUDA C++ Programming Guide, arithmetic instructions)."""
LOAD_LATENCY = 1100.0
"""Clocks until data arrives from memory. This and the next two figures were chosen, at the order of magnitude that
M. Luo et al. measured on an H100, https://arxiv.org/abs/2402.13499."""
BULK_LATENCY = 1300.0
"""Clocks until data arrives that threads of their own load in bulk, and the others have been told so."""
HALF_BUSY_WARPS = 10.0
"""Warps of an SM with which its lanes are busy half of the time; the other time they wait for results."""
PRODUCT_BUSY = 0.7
"""Share of the time that lanes are busy in kernels with products, whose threads hold many independent values."""
LAUNCH_CLOCKS = 16.0
"""Clocks in which an SM starts a block. Assumed."""
BARRIER_LATENCY = 160.0
"""Clocks in which threads that load and threads that compute wait for each other in a step."""
PRODUCT_LATENCY = 200.0
"""Clocks that a warp group waits for its products, and for the barrier after them."""
EXCHANGE_LATENCY = 35.0
"""Clocks until a thread has another thread's value and has combined it with its own."""
BLOCK_OVERHEAD = 1000.0
"""Clocks that a block takes to begin and to end."""
OTHER_REGISTERS = 18
"""32-bit registers of a thread that hold addresses and the like, in addition to fragments."""
OPERAND_REGISTERS = 34
"""32-bit registers of a thread that hold the operands of products, and more addresses."""
LEAST_REGISTERS = 28
"""32-bit registers of a thread that must hold addresses and the like; if fragments need them, values spill."""
MOST_REGISTERS = 255
"""Largest number of registers of a thread (CUDA C++ Programming Guide)."""
WGMMA_REGISTERS = 26
"""Registers per thread that a wgmma instruction takes in addition to its sums; four more if its first operand is in
registers. ptxas demands them (CUDA 13.0, «C7602 Insufficient registers»)."""
MOST_COLUMNS = 256
"""Largest number of columns of a wgmma instruction (PTX ISA)."""
SPILL_FACTOR = 4.0
"""A kernel takes at least this many times as long if one fragment alone does not fit in registers."""
ERROR = 0.05
"""Relative error of the prior if it compares the fastest candidates of a space. Measured on recordings."""
SHARPNESS = 8
"""Exponent of the norm that combines several bounds: the largest bound decides, and the others count a little."""


def estimates(facts: Mapping[int, StaticFacts], figures: Figures) -> dict[int, float]:
    """Return the estimates in milliseconds of all candidates with sufficient facts."""
    by_index = {index: estimate(of_index, figures) for index, of_index in facts.items()}
    return {index: ms for index, ms in by_index.items() if ms is not None}


def best_estimate(facts: Iterable[StaticFacts | None], figures: Figures | None) -> float:
    """Return the least of the estimates in milliseconds; infinite if there is none."""
    known = [] if figures is None else [estimate(of_one, figures) for of_one in facts if of_one is not None]
    return min((ms for ms in known if ms is not None), default=math.inf)


def choices(facts: Mapping[int, StaticFacts], figures: Figures) -> list[tuple[int, float]]:
    """Return the candidates that can run and have an estimate, with their estimates, the best first."""
    fit = {index: of_index for index, of_index in sorted(facts.items()) if can_run(of_index, figures)}
    return sorted(estimates(fit, figures).items(), key=lambda choice: choice[1])


def alike(ranked: Sequence[tuple[int, float]]) -> int:
    """Return the number of candidates, after the first, whose estimates exceed the first by less than `ERROR`."""
    return sum(ms < ranked[0][1] * (1 + ERROR) for _, ms in ranked[1:])


def hedged(ranked: Sequence[tuple[int, float]], facts: Mapping[int, StaticFacts], n: int) -> list[tuple[int, float]]:
    """Return `n` of `ranked`, the best first, that differ in grid, threads, shared memory or block order, if possible.

    If possible, the last of them has a grid or threads that differ from the rest. The prior makes similar errors for
    kernels that divide work in the same way. One error must not spoil all choices.
    """

    def division(index: int) -> tuple[Any, ...]:
        return facts[index].grid, facts[index].threads

    def kind(index: int) -> tuple[Any, ...]:
        work = facts[index].work
        return *division(index), facts[index].smem_bytes, work and work.block_order

    of_kinds = dict[tuple[Any, ...], tuple[int, float]]()
    for choice in ranked:
        of_kinds.setdefault(kind(choice[0]), choice)
    best = [*of_kinds.values()][: n - 1]
    left = [choice for choice in ranked if choice not in best]
    seen = {division(index) for index, _ in best}
    last = [choice for choice in left if division(choice[0]) not in seen][:1]
    more = [choice for choice in left if choice not in last][: n - len(best) - len(last)]
    return [*sorted([*best, *more], key=ranked.index), *last]


class Load(NamedTuple):
    """Clocks for which one block occupies each resource of an SM, over all its steps."""

    tensor: float
    arithmetic: float
    shared: float
    issue: float


def estimate(facts: StaticFacts, figures: Figures) -> float | None:
    """Return the estimated milliseconds of a kernel; None if too little is known about it."""
    work, blocks = facts.work, math.prod(facts.grid)
    if work is None or not facts.grid or not facts.threads or blocks < 1:
        return None
    resident = residency(facts, work, figures)
    load = block_load(work, facts.threads, figures)
    at_once = figures.sms * resident
    rounds, rest = divmod(blocks, at_once)
    clocks = rounds * round_clocks(work, facts, load, resident, min(blocks, at_once), figures) if rounds else 0.0
    if rest:
        last = -(-rest // figures.sms)
        clocks += round_clocks(work, facts, load, last, rest, figures)
    return clocks / figures.clock_hz * 1e3 * spilling(facts, work)


def residency(facts: StaticFacts, work: BlockWork, figures: Figures) -> int:
    """Return the number of blocks that an SM holds at once."""
    threads, sm = facts.threads or 1, figures.sm
    if threads > work.threads:  # producers and consumers divide the registers between them
        registers = most_registers(threads, figures)
    else:
        more = (loaded_registers(work) if work.stages == 0 else OPERAND_REGISTERS) if work.gemms else 0
        registers = min(MOST_REGISTERS, int(held_registers(facts, work) + OTHER_REGISTERS + more))
    most = (
        sm.registers // (max(registers, 1) * threads),
        sm.threads // threads,
        (sm.smem_kib << 10) // ((facts.smem_bytes or 0) + (sm.reserved_kib << 10)),
        sm.blocks,
    )
    return max(1, min(most))


def most_registers(threads: int, figures: Figures) -> int:
    """Return the number of registers that each thread of a block may have; ptxas allots them in steps of eight."""
    return min(MOST_REGISTERS, figures.sm.registers // threads // 8 * 8)


def held_registers(facts: StaticFacts, work: BlockWork) -> int:
    """Return the number of 32-bit registers of a thread that hold fragments."""
    return max(facts.accumulators or 0, work.fragment_registers)


def loaded_registers(work: BlockWork) -> float:
    """Return the number of a thread's 32-bit registers through which a product's operands pass without stages.

    If rows cannot be divided by shifts, the addresses take as many registers again.
    """
    loads = (access for access in work.reads if access.steps == work.steps)
    n_bytes = sum((2 if access.uneven else 1) * access.n_bytes for access in loads) / max(1, len(work.gemms))
    return n_bytes / work.steps / work.threads / 4


def spilling(facts: StaticFacts, work: BlockWork) -> float:
    """Return the factor by which a kernel slows down because its fragments do not fit in registers."""
    consumers = work.threads // 128
    most = MOST_REGISTERS
    if (facts.threads or 1) > work.threads:
        most = 240 if consumers <= 2 else 160  # registers that tilelang gives each consumer thread
    needed = held_registers(facts, work) + LEAST_REGISTERS + (loaded_registers(work) if work.stages == 0 else 0)
    largest, over = facts.accumulators or 0, needed - most
    if largest >= min(most, MOST_REGISTERS):
        return SPILL_FACTOR * largest / most
    return 1.0 + 0.7 * min(over, 16) / 16 + over / 100 if over > 0 else 1.0


def block_load(work: BlockWork, threads: int, figures: Figures) -> Load:
    """Return the load that all steps of one block put on each resource."""
    arch = figures.architecture
    flops = sum(
        gemm.flops / arch.tensor_flops / operand_rate(gemm.dtype) / filling(gemm, work, figures) for gemm in work.gemms
    )
    operands = sum(operand_bytes(gemm, work.threads, figures) for gemm in work.gemms)
    moved = [*work.reads, *work.writes]
    instructions = sum(access.n_bytes / access.width for access in moved if access.width)
    # Threads that copy tiles themselves do so in vectors of 16 bytes if nothing else is known.
    tiles = [access for access in work.reads if not access.width and threads <= work.threads]
    copies = COPY_OPERATIONS * sum(tile.n_bytes / 16 * (UNEVEN_FACTOR if tile.uneven else 1) for tile in tiles)
    return Load(
        tensor=flops,
        arithmetic=OPERATION_INSTRUCTIONS * (work.scalar_ops / arch.lanes + work.special_ops / SPECIAL_LANES)
        + copies / arch.lanes,
        shared=(operands + work.shared_bytes) / SHARED_BYTES,
        issue=instructions / 32,
    )


def exceeded_limit(facts: StaticFacts, limits: DeviceLimits) -> str:
    """Return a message about the device limit that a candidate exceeds; empty if the candidate exceeds no limit."""
    if limits.smem_bytes is not None and facts.smem_bytes is not None and facts.smem_bytes > limits.smem_bytes:
        return f"shared memory: {facts.smem_bytes} bytes per block, but the device has {limits.smem_bytes}"
    if limits.threads is not None and facts.threads is not None and facts.threads > limits.threads:
        return f"threads: {facts.threads} per block, but the device allows {limits.threads}"
    if facts.lacking_registers:
        return f"setmaxnreg: a block would wait forever for {facts.lacking_registers} registers that it never gets"
    return ""


def can_run(facts: StaticFacts, figures: Figures) -> bool:
    """Return whether a block fits on the device, warps can divide and chain products, and registers can hold the sums.

    Only the sums of a wgmma instruction must be in registers; the compiler can spill all other values.
    """
    work = facts.work
    if exceeded_limit(facts, figures.limits):
        return False
    if work is None or figures.architecture.tensor_memory:
        return True
    for gemm in work.gemms:
        possible = divisions(gemm, work.threads, figures)
        if not possible or (gemm.feeds and not passes_on(gemm, *possible[-1], work.threads, figures)):
            return False
        if grouped(gemm, work.threads, figures):
            columns = min(MOST_COLUMNS, gemm.n // split(gemm, work.threads, figures)[1])
            taken = columns * gemm.sum_bits // 64 + WGMMA_REGISTERS + (4 if gemm.in_registers else 0)
            if taken > most_registers(facts.threads or work.threads, figures):
                return False
    return True


def passes_on(gemm: Gemm, rows: int, columns: int, threads: int, figures: Figures) -> bool:
    """Return whether warps that divide a product into these parts hold it as the next product's operand.

    The next product reads whole rows, so several warps must not share a row. The two products deal tiles of 64 rows to
    several warp groups in different orders, so each group must have a single tile. Else layout inference fails.
    """
    tiles = gemm.m // (64 * rows) if grouped(gemm, threads, figures) else 1
    return columns == 1 and (rows == 1 or tiles == 1)


def grouped(gemm: Gemm, threads: int, figures: Figures) -> bool:
    """Return whether warp groups compute a product (wgmma). This needs 64 rows, and neither float32 nor float64."""
    by_group = figures.architecture.warp_groups and gemm.m >= 64 and threads % 128 == 0
    return by_group and gemm.dtype not in ("float32", "float64")


def divisions(gemm: Gemm, threads: int, figures: Figures) -> list[tuple[int, int]]:
    """Return each pair (row parts, column parts) into which warps, or warp groups, can divide a product equally.

    A warp group computes multiples of 64 rows and 8 columns (PTX ISA, «wgmma.mma_async»), and a warp computes multiples
    of 16 rows and 8 columns («mma»). `T.gemm` demands an equal division (tilelang 0.1.15, src/cuda/op/gemm.cc).
    """
    by_group = grouped(gemm, threads, figures)
    parts, least = max(1, threads // (128 if by_group else 32)), 64 if by_group else 16
    factors = [(rows, parts // rows) for rows in range(1, parts + 1) if parts % rows == 0]
    return [(rows, columns) for rows, columns in factors if gemm.m % (rows * least) == 0 == gemm.n % (columns * 8)]


def split(gemm: Gemm, threads: int, figures: Figures) -> tuple[int, int]:
    """Return the pair (row parts, column parts) into which the policy of `gemm` divides the product."""
    possible = divisions(gemm, threads, figures) or [(1, 1)]
    if gemm.policy in (1, 2):
        return possible[-1 if gemm.policy == 1 else 0]
    return min(possible, key=lambda parts: abs(math.log(gemm.m / parts[0] / (gemm.n / parts[1]))))


def filling(gemm: Gemm, work: BlockWork, figures: Figures) -> float:
    """Return the share of the peak rate that tensor cores reach on a product of this shape."""
    if not figures.architecture.warp_groups or grouped(gemm, work.threads, figures):
        return TENSOR_SHARE
    return 0.6  # mma on sm_90 reaches about this share (M. Luo et al.)


def operand_bytes(gemm: Gemm, threads: int, figures: Figures) -> float:
    """Return the bytes of shared memory that a block's calls of a product read."""
    rows, columns = split(gemm, threads, figures)
    size = 4 if "32" in gemm.dtype else 1 if "8" in gemm.dtype else 2
    again = max(rows, math.ceil(gemm.m / 64)) if grouped(gemm, threads, figures) else rows
    first = 0 if gemm.in_registers else gemm.m * columns
    return gemm.calls * gemm.k * size * (first + gemm.n * again)


def round_clocks(
    work: BlockWork, facts: StaticFacts, load: Load, resident: int, blocks: int, figures: Figures
) -> float:
    """Return the clocks that a round of `blocks` blocks takes, if each SM holds `resident` blocks."""
    steps = max(work.steps, 1.0)
    busy_sms = min(figures.sms, blocks)
    share = min(1.0, L2_SHARE * figures.sms / busy_sms)
    beside = max(1, min(figures.sms // L2_PARTITIONS, blocks))
    all_bytes, once = work.read_bytes + work.write_bytes, requested_bytes(work, facts.grid, beside) / beside
    cached = (all_bytes - SAVED_SHARE * max(0.0, all_bytes - once)) / (L2_BYTES * share)
    moved = requested_bytes(work, facts.grid, blocks)
    if work.tensor_bytes is not None and work.tensor_bytes < figures.l2_bytes:  # L2 fetches each byte once for the grid
        moved = min(moved, work.tensor_bytes * blocks / math.prod(facts.grid))
    memory = moved / (figures.memory_bytes_s * MEMORY_SHARE)
    memory *= figures.clock_hz / resident  # clocks of one block, if all SMs share the memory's rate
    groups, lanes = max(1, work.threads // 128), work.threads / 128
    # The time of one block alone, over all its steps.
    moving = max(cached, memory)
    own = max(load.tensor, load.shared) / (groups if load.tensor else 1)
    own += load.arithmetic / lanes + load.issue + (steps * PRODUCT_LATENCY if work.gemms else 0.0)
    own += work.exchanges * EXCHANGE_LATENCY
    # Each product of a step frees its own operands, so several products keep more loads in flight.
    under_way, latency = max(work.stages, 1), LOAD_LATENCY
    if (facts.threads or 1) > work.threads:
        latency, own = BULK_LATENCY, own + steps * BARRIER_LATENCY
        under_way = under_way * len(work.gemms) if work.gemms else under_way + 1
    waiting = (steps * latency + moving + own) / under_way
    alone = BLOCK_OVERHEAD + latency + max(own, waiting)
    # The time of all blocks of an SM together.
    warps = resident * (facts.threads or 1) / 32
    busy = PRODUCT_BUSY if work.gemms else warps / (warps + HALF_BUSY_WARPS)
    bounds = (load.tensor, load.arithmetic / busy, load.shared, load.issue / busy, cached, memory)
    together = [*(resident * bound for bound in bounds), alone]
    most = max(together)
    longest = most * sum((bound / most) ** SHARPNESS for bound in together) ** (1 / SHARPNESS)
    return float(longest + resident * LAUNCH_CLOCKS)


def requested_bytes(work: BlockWork, grid: tuple[int, ...], blocks: int) -> float:
    """Return the bytes that `blocks` successive blocks move; bytes that several of them access count once."""
    near, extents = neighbourhood(grid, blocks, work.block_order), dict(zip("xyz", (*grid, 1, 1), strict=False))
    total = 0.0
    for access in (*work.reads, *work.writes):
        moved = access.n_bytes * math.prod(near[axis] for axis in access.axes)
        if access.tensor_bytes is not None:  # if blocks move more together than the tensor has, neighbours overlap
            moved = min(moved, access.tensor_bytes * math.prod(near[axis] / extents[axis] for axis in access.axes))
        total += moved
    return total


def neighbourhood(grid: tuple[int, ...], blocks: int, order: str) -> dict[str, float]:
    """Return the extent of `blocks` successive blocks along each axis of the grid."""
    x, y = (*grid, 1, 1)[:2]
    layers = max(1.0, blocks / (x * y))
    plane = float(min(blocks, x * y))
    kind, _, panel = order.partition(" ")
    width = int(panel) if panel.isdigit() and int(panel) > 0 else 0
    if width and "Column" in kind:
        across, down = _strip(x, y, plane, width)
    elif width:
        down, across = _strip(y, x, plane, width)
    else:
        down, across = _strip(y, x, plane, 1)
    return {"x": across, "y": down, "z": layers}


def _strip(short: int, long: int, blocks: float, width: int) -> tuple[float, float]:
    """Return the extent of `blocks` blocks along both axes. The blocks fill panels of `width` that span the grid."""
    first = min(width, short)
    along = min(float(long), blocks / first)
    return min(float(short), max(first, blocks / long)), along


def figures_for(target: Target | None, devices: Sequence[DeviceInfo]) -> Figures | None:
    """Return the figures for a run's prior; None if the prior knows no figures, for example for a CPU."""
    if target is None or target.kind != "cuda":
        return None
    return figures_of(devices[0] if devices else None, target.arch)


def columns(facts: Mapping[int, StaticFacts], figures: Figures) -> dict[str, Any]:
    """Return the fields of `SpaceSurveyed` for the candidates' facts, with `CAN_RUN` if its values differ."""
    indices, prior = tuple(sorted(facts)), estimates(facts, figures)
    runs = tuple(float(can_run(facts[index], figures)) for index in indices)
    return {
        "indices": indices,
        "prior": tuple(float(f"{prior[index]:.6g}") if index in prior else None for index in indices) if prior else (),
        "facts": {CAN_RUN: runs} if len(set(runs)) > 1 else {},
    }


def survey_fields(surveyed: SpaceSurveyed | None) -> dict[str, Any]:
    """Return the fields `prior` and `facts` of `Searched` from a survey; an empty dict without a survey."""
    if surveyed is None:
        return {}
    prior = {index: value for index, value in zip(surveyed.indices, surveyed.prior, strict=False) if value is not None}
    facts = dict[int, dict[str, float]]()
    for name, column in surveyed.facts.items():
        for index, value in zip(surveyed.indices, column, strict=False):
            if value is not None:
                facts.setdefault(index, {})[name] = value
    return {"prior": prior or None, "facts": facts}
