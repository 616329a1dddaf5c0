"""The prior: estimates a candidate's latency from its lowered facts and the device's figures.

Blocks run in rounds: an SM holds as many at once as its threads, registers and shared memory admit. A round's time has
two lower bounds. One is its busiest resource: tensor cores, arithmetic, shared memory, the L2 cache or the memory. The
other is one block alone, which waits for its loads unless stages hide them. The roofline is from S. Williams et al.,
https://doi.org/10.1145/1498765.1498785. The estimates serve to rank candidates; as milliseconds they may be far off.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from atune.journal.events import SpaceSurveyed
from atune.model.artifact import BlockWork, Gemm, StaticFacts
from atune.model.device import DeviceInfo, DeviceLimits, Figures, Target, figures_of
from atune.model.measurement import operand_rate

CAN_RUN = "can_run"
"""The fact that is 0 of kernels that cannot run, and 1 of others."""
SHARED_BYTES = 128
"""Bytes that an SM's shared memory moves a clock (CUDA C++ Programming Guide, 32 banks of 4 bytes)."""
L2_BYTES = 64
"""Bytes that an SM gets from the L2 cache a clock, at most («A100 Tensor Core GPU Architecture»: as of the V100)."""
L2_SHARE = 0.6
"""Share of that rate when all SMs read at once. Chosen; no data sheet gives it."""
MEMORY_SHARE = 0.92
"""Share of the memory's nominal rate that a copy reaches. Chosen."""
SLOTS = 1.8
"""Instructions of an operation, with the conversions, predicates and addresses that it needs. Fitted to recordings."""
SPECIAL_LANES = 16
"""Exponentials and the like, of an SM a clock (CUDA C++ Programming Guide, table of arithmetic instructions)."""
LATENCY = 700.0
"""Clocks until a load of the memory arrives. Chosen, as are the next two; of the order that M. Luo et al. measure on an
H100, https://arxiv.org/abs/2402.13499."""
TURN = 120.0
"""Clocks in which a warp group waits for its products, and for the barrier after them."""
START = 1500.0
"""Clocks in which a block begins and ends."""
OTHER_REGISTERS = 56
"""32-bit registers of a thread that hold addresses and the like, in addition to fragments."""
MOST_REGISTERS = 255
"""A thread has at most (CUDA C++ Programming Guide)."""
OF_A_PRODUCT = 26
"""Registers of a thread that a wgmma instruction takes beside its sums; four more if its first operand is in registers.
ptxas demands them (CUDA 13.0, «C7602 Insufficient registers»)."""
MOST_COLUMNS = 256
"""A wgmma instruction has at most (PTX ISA)."""
LOST = 4.0
"""How much longer everything takes, at least, where one fragment alone does not fit in registers."""
SHARPNESS = 4
"""Exponent of the norm over several bounds: the largest decides, and the others count a little."""


def estimates(facts: Mapping[int, StaticFacts], figures: Figures) -> dict[int, float]:
    """Return an estimate in milliseconds for each candidate of which enough is known."""
    found = {index: estimate(one, figures) for index, one in facts.items()}
    return {index: ms for index, ms in found.items() if ms is not None}


def choices(facts: Mapping[int, StaticFacts], figures: Figures) -> list[tuple[int, float]]:
    """Return the candidates that can run and are known enough, with their estimates, the best first."""
    fit = {index: one for index, one in sorted(facts.items()) if can_run(one, figures)}
    return sorted(estimates(fit, figures).items(), key=lambda choice: choice[1])


def hedged(ranked: Sequence[tuple[int, float]], facts: Mapping[int, StaticFacts], n: int) -> list[tuple[int, float]]:
    """Return the first `n` of `ranked`, the last of them with another grid or other threads than the rest, if any has.

    The prior errs alike where work is divided alike: one error of it shall not cost all choices.
    """
    found, left = list(ranked[: n - 1]), ranked[n - 1 :]
    seen = {(facts[index].grid, facts[index].threads) for index, _ in found}
    others = [one for one in left if (facts[one[0]].grid, facts[one[0]].threads) not in seen]
    return [*found, *(others or left)[:1]]


class Load(NamedTuple):
    """The clocks that one block needs of each resource of an SM, over all its steps."""

    tensor: float
    arithmetic: float
    shared: float
    issue: float


def estimate(facts: StaticFacts, figures: Figures) -> float | None:
    """Return the milliseconds that a kernel may take; None where too little is known of it."""
    work, blocks = facts.work, math.prod(facts.grid)
    if work is None or not facts.grid or not facts.threads or blocks < 1:
        return None
    resident = residency(facts, work, figures)
    load = load_of(work, facts.threads, figures)
    at_once = figures.sms * resident
    rounds, rest = divmod(blocks, at_once)
    clocks = rounds * round_clocks(work, facts, load, resident, min(blocks, at_once), figures) if rounds else 0.0
    if rest:
        last = -(-rest // figures.sms)
        clocks += round_clocks(work, facts, load, last, rest, figures)
    return clocks / figures.clock_hz * 1e3 * spilling(facts, work)


def residency(facts: StaticFacts, work: BlockWork, figures: Figures) -> int:
    """Return how many blocks an SM holds at once."""
    threads, sm = facts.threads or 1, figures.sm
    if threads > work.threads:  # producers and consumers share out the registers among themselves
        registers = most_registers(threads, figures)
    else:
        registers = min(MOST_REGISTERS, held(facts, work) + OTHER_REGISTERS)
    most = (
        sm.registers // (max(registers, 1) * threads),
        sm.threads // threads,
        (sm.smem_kib << 10) // ((facts.smem_bytes or 0) + (sm.reserved_kib << 10)),
        sm.blocks,
    )
    return max(1, min(most))


def most_registers(threads: int, figures: Figures) -> int:
    """Return how many registers each of a block's threads may have: ptxas gives them in steps of eight."""
    return min(MOST_REGISTERS, figures.sm.registers // threads // 8 * 8)


def held(facts: StaticFacts, work: BlockWork) -> int:
    """Return 32-bit registers of a thread that fragments take."""
    return max(facts.accumulators or 0, work.fragment_registers)


def spilling(facts: StaticFacts, work: BlockWork) -> float:
    """Return how much longer a kernel takes because its fragments do not fit in registers."""
    consumers = work.threads // 128
    most = MOST_REGISTERS
    if (facts.threads or 1) > work.threads:
        most = 240 if consumers <= 2 else 160  # what tilelang gives each consumer
    largest, over = facts.accumulators or 0, held(facts, work) - most
    if largest >= min(most, MOST_REGISTERS):
        return LOST * largest / most
    return 1.0 + min(over, 32) / 32 + over / most if over > 0 else 1.0


def load_of(work: BlockWork, threads: int, figures: Figures) -> Load:
    """Return what all steps of one block ask of each resource."""
    arch = figures.architecture
    flops = sum(
        gemm.flops / arch.tensor_flops / operand_rate(gemm.dtype) / filling(gemm, work, figures) for gemm in work.gemms
    )
    operands = sum(operand_bytes(gemm, work.threads, figures) for gemm in work.gemms)
    moved = [*work.reads, *work.writes]
    instructions = sum(access.n_bytes / access.width for access in moved if access.width)
    return Load(
        tensor=flops,
        arithmetic=SLOTS * (work.scalar_ops / arch.lanes + work.special_ops / SPECIAL_LANES),
        shared=(operands + work.shared_bytes) / SHARED_BYTES,
        issue=instructions / 32,
    )


def why_never(facts: StaticFacts, limits: DeviceLimits) -> str:
    """Return why a candidate cannot run on a device with `limits`; empty if it can."""
    if limits.smem_bytes is not None and facts.smem_bytes is not None and facts.smem_bytes > limits.smem_bytes:
        return f"shared memory: {facts.smem_bytes} bytes a block, the device has {limits.smem_bytes}"
    if limits.threads is not None and facts.threads is not None and facts.threads > limits.threads:
        return f"threads: {facts.threads} a block, the device takes {limits.threads}"
    if facts.lacking_registers:
        return f"setmaxnreg: a block waits for {facts.lacking_registers} registers more than it has, for ever"
    return ""


def can_run(facts: StaticFacts, figures: Figures) -> bool:
    """Tell whether a block fits on the device, warps can divide and chain its products, and registers hold their sums.

    Only sums of one wgmma instruction must be in registers; others are spilled.
    """
    work = facts.work
    if why_never(facts, figures.limits):
        return False
    if work is None or figures.architecture.tensor_memory:
        return True
    for gemm in work.gemms:
        found = divisions(gemm, work.threads, figures)
        # The next product takes whole rows, which no warp has where several share them: layout inference fails.
        if not found or (gemm.feeds and found[-1][1] > 1):
            return False
        if grouped(gemm, work.threads, figures):
            columns = min(MOST_COLUMNS, gemm.n // split(gemm, work.threads, figures)[1])
            taken = columns * gemm.sum_bits // 64 + OF_A_PRODUCT + (4 if gemm.in_registers else 0)
            if taken > most_registers(facts.threads or work.threads, figures):
                return False
    return True


def grouped(gemm: Gemm, threads: int, figures: Figures) -> bool:
    """Whether warp groups do a product (wgmma), of 64 rows each at least and not of float32."""
    by_group = figures.architecture.warp_groups and gemm.m >= 64 and threads % 128 == 0
    return by_group and gemm.dtype not in ("float32", "float64")


def divisions(gemm: Gemm, threads: int, figures: Figures) -> list[tuple[int, int]]:
    """Return into how many parts warps, or warp groups, can divide the rows and the columns of a product.

    All parts are equal. A warp group computes multiples of 64 rows and 8 columns (PTX ISA, «wgmma.mma_async»), a warp
    of 16 rows and 8 columns («mma»). `T.gemm` demands that (tilelang 0.1.15, src/cuda/op/gemm.cc).
    """
    by_group = grouped(gemm, threads, figures)
    parts, least = max(1, threads // (128 if by_group else 32)), 64 if by_group else 16
    found = [(rows, parts // rows) for rows in range(1, parts + 1) if parts % rows == 0]
    return [(rows, columns) for rows, columns in found if gemm.m % (rows * least) == 0 == gemm.n % (columns * 8)]


def split(gemm: Gemm, threads: int, figures: Figures) -> tuple[int, int]:
    """Return into how many parts warps, or warp groups, divide the rows and the columns of a product."""
    found = divisions(gemm, threads, figures) or [(1, 1)]
    if gemm.policy in (1, 2):
        return found[-1 if gemm.policy == 1 else 0]
    return min(found, key=lambda parts: abs(math.log(gemm.m / parts[0] / (gemm.n / parts[1]))))


def filling(gemm: Gemm, work: BlockWork, figures: Figures) -> float:
    """Return the share of their rate that tensor cores reach with a product of this shape."""
    if not figures.architecture.warp_groups or grouped(gemm, work.threads, figures):
        return 1.0
    return 0.6  # mma on sm_90 reaches about that (M. Luo et al.)


def operand_bytes(gemm: Gemm, threads: int, figures: Figures) -> float:
    """Return bytes of shared memory that a block's products read."""
    rows, columns = split(gemm, threads, figures)
    size = 4 if "32" in gemm.dtype else 1 if "8" in gemm.dtype else 2
    again = max(rows, math.ceil(gemm.m / 64)) if grouped(gemm, threads, figures) else rows
    first = 0 if gemm.in_registers else gemm.m * columns
    return gemm.calls * gemm.k * size * (first + gemm.n * again)


def round_clocks(
    work: BlockWork, facts: StaticFacts, load: Load, resident: int, blocks: int, figures: Figures
) -> float:
    """Return the clocks of one round of `blocks` blocks, `resident` of them on each SM."""
    steps = max(work.steps, 1.0)
    busy_sms = min(figures.sms, blocks)
    share = min(1.0, L2_SHARE * figures.sms / busy_sms)
    cached = (work.read_bytes + work.write_bytes) / (L2_BYTES * share)
    memory = distinct_bytes(work, facts.grid, blocks, figures) / (figures.memory_bytes_s * MEMORY_SHARE)
    memory *= figures.clock_hz / resident  # clocks of one block, where all SMs have their share
    groups = max(1, work.threads // 128)
    # One block alone, in all its steps.
    moving = max(cached, memory)
    own = max(load.tensor, load.shared) / (groups if load.tensor else 1)
    own += load.arithmetic / groups + load.issue + (steps * TURN if work.gemms else 0.0)
    # Each product of a step gives its own operands back, so that several have as many loads under way.
    under_way = max(work.stages, 1) * (max(len(work.gemms), 1) if (facts.threads or 1) > work.threads else 1)
    waiting = (steps * LATENCY + moving + own) / under_way
    alone = START + LATENCY + max(own, waiting)
    # All blocks of an SM together.
    warps = min(1.0, resident * (facts.threads or 1) / 32 / 8)
    bounds = (load.tensor, load.arithmetic / warps, load.shared, load.issue / warps, cached, memory)
    together = [*(resident * bound for bound in bounds), alone]
    most = max(together)
    return float(most * sum((bound / most) ** SHARPNESS for bound in together) ** (1 / SHARPNESS))


def distinct_bytes(work: BlockWork, grid: tuple[int, ...], blocks: int, figures: Figures) -> float:
    """Return bytes of memory that `blocks` blocks at once move: what several of them read comes once."""
    near = neighbourhood(grid, blocks, work.block_order)
    accesses = (*work.reads, *work.writes)
    total = sum(access.n_bytes * math.prod(near[axis] for axis in access.axes) for access in accesses)
    if work.tensor_bytes is None or work.tensor_bytes >= figures.l2_bytes:
        return total
    return min(total, work.tensor_bytes * blocks / math.prod(grid))  # each byte comes once for the whole grid


def neighbourhood(grid: tuple[int, ...], blocks: int, order: str) -> dict[str, float]:
    """Return over how many places of each axis of the grid `blocks` successive blocks reach."""
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
    """Return how far `blocks` blocks reach that fill panels of `width` places, each as long as the grid."""
    first = min(width, short)
    along = min(float(long), blocks / first)
    return min(float(short), max(first, blocks / long)), along


def figures_for(target: Target | None, devices: Sequence[DeviceInfo]) -> Figures | None:
    """Return the figures that a run's prior uses; None if there are none, as for the CPU."""
    if target is None or target.kind != "cuda":
        return None
    return figures_of(devices[0] if devices else None, target.arch)


def columns(facts: Mapping[int, StaticFacts], figures: Figures) -> dict[str, Any]:
    """Make the fields of `SpaceSurveyed` from what is known of candidates: `CAN_RUN` where they differ in it."""
    indices, prior = tuple(sorted(facts)), estimates(facts, figures)
    runs = tuple(float(can_run(facts[index], figures)) for index in indices)
    return {
        "indices": indices,
        "prior": tuple(float(f"{prior[index]:.6g}") if index in prior else None for index in indices) if prior else (),
        "facts": {CAN_RUN: runs} if len(set(runs)) > 1 else {},
    }


def survey_fields(surveyed: SpaceSurveyed | None) -> dict[str, Any]:
    """Return what `Searched` has of a survey: `prior` and `facts`; neither where there was none."""
    if surveyed is None:
        return {}
    prior = {index: value for index, value in zip(surveyed.indices, surveyed.prior, strict=False) if value is not None}
    facts = dict[int, dict[str, float]]()
    for name, column in surveyed.facts.items():
        for index, value in zip(surveyed.indices, column, strict=False):
            if value is not None:
                facts.setdefault(index, {})[name] = value
    return {"prior": prior or None, "facts": facts}
