"""The prior: what makes its estimate longer, what it says nothing of, and the survey that a strategy gets of it."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest

from atune.engine import prior
from atune.engine.strategy import Searched, make_strategy
from atune.journal.events import SpaceSurveyed, decode, encode
from atune.model.artifact import Access, BlockWork, Gemm, StaticFacts
from atune.model.device import SHEETS, DeviceInfo, DeviceLimits, Figures, Target, device_named, figures_of

H200 = DeviceInfo("0", "NVIDIA H200", arch="sm_90a")


def figures(device: DeviceInfo = H200) -> Figures:
    found = figures_of(device)
    assert found is not None
    return found


def product(
    *, m: int = 128, n: int = 256, k: int = 64, stages: int = 3, threads: int = 256, blocks: int = 512, sums: int = 0
) -> StaticFacts:
    """What lowering tells of a product of bfloat16 with a sum over 4096. `sums`: registers of them, if not all."""
    steps = 4096 / k
    work = BlockWork(
        gemms=(Gemm(m=m, n=n, k=k, calls=steps, dtype="bfloat16"),),
        reads=(Access(n_bytes=m * 8192.0, axes="y", steps=steps), Access(n_bytes=n * 8192.0, axes="x", steps=steps)),
        writes=(Access(n_bytes=m * n * 2.0, axes="xy"),),
        shared_bytes=(m + n) * 8192.0,
        fragment_registers=sums or m * n // threads,
        stages=stages,
        steps=steps,
        threads=threads,
        tensor_bytes=100 << 20,
    )
    smem = max(1, stages) * (m + n) * k * 2
    producers = 128 if stages else 0
    grid = (16, blocks // 16, 1)
    return StaticFacts(smem, threads + producers, grid, accumulators=sums or m * n // threads, work=work)


def ms(facts: StaticFacts, device: DeviceInfo = H200) -> float:
    found = prior.estimate(facts, figures(device))
    assert found is not None and found > 0
    return found


def test_more_blocks_fewer_stages_and_slower_devices_take_longer() -> None:
    times = [ms(product(blocks=blocks)) for blocks in (16, 256, 512, 1024, 4096)]
    assert times == sorted(times) and len(set(times)) == 5
    times = [ms(product(stages=stages)) for stages in (4, 3, 2, 1)]
    assert times[0] <= times[1] <= times[2] < times[3]
    slower, idle = msgspec.structs.replace(H200, sms=66), msgspec.structs.replace(H200, memory_bytes_s=1e11)
    assert ms(product(), slower) > ms(product()) < ms(product(), idle)


def test_sums_that_no_thread_can_hold_come_last() -> None:
    spilling = [ms(product(sums=sums)) for sums in (240, 256, 512)]
    assert min(spilling) > 3 * ms(product())
    assert spilling == sorted(spilling)


def test_without_stages_operands_pass_through_registers_and_rows_that_are_no_power_of_two_cost_divisions() -> None:
    staged, plain = (product(m=64, n=192, k=128, stages=stages, threads=128) for stages in (1, 0))
    assert plain.work is not None and staged.work is not None
    assert prior.loaded_registers(plain.work) == (64 + 192) * 128 * 2 / 128 / 4
    x, w = plain.work.reads
    uneven = msgspec.structs.replace(plain.work, reads=(x, msgspec.structs.replace(w, uneven=True)))
    assert prior.loaded_registers(uneven) == (64 + 2 * 192) * 128 * 2 / 128 / 4
    assert ms(msgspec.structs.replace(plain, work=uneven)) > 1.5 * ms(plain), "registers spill"


def test_exchanges_and_launches_take_time() -> None:
    facts = product(blocks=132)
    assert facts.work is not None
    waiting = msgspec.structs.replace(facts.work, exchanges=10_000.0)
    assert (
        ms(msgspec.structs.replace(facts, work=waiting)) > ms(facts) + 10_000 * prior.EXCHANGE_LATENCY / 2e9 * 1e3 / 2
    )
    shared = [msgspec.structs.replace(access, tensor_bytes=1 << 20) for access in facts.work.reads]
    overlapping = msgspec.structs.replace(facts.work, reads=tuple(shared))
    assert prior.requested_bytes(overlapping, facts.grid, 132) < prior.requested_bytes(facts.work, facts.grid, 132)


def test_a_product_is_not_faster_than_tensor_cores_nor_a_copy_than_memory() -> None:
    flops = 2 * 128 * 256 * 4096 * 512
    assert ms(product()) >= flops / 989e12 * 1e3
    work = BlockWork(
        reads=(Access(n_bytes=16384.0, axes="x"),), writes=(Access(n_bytes=16384.0, axes="x"),), threads=128
    )
    copy = StaticFacts(smem_bytes=0, threads=128, grid=(65536, 1, 1), accumulators=32, work=work)
    assert ms(copy) >= 65536 * 32768 / 4.8e12 * 1e3


def test_panels_of_blocks_are_read_in_their_order() -> None:
    grid = (64, 64, 1)
    assert prior.neighbourhood(grid, 128, "") == {"x": 64, "y": 2, "z": 1}
    assert prior.neighbourhood(grid, 128, "rasterization2DRow 8") == {"x": 16, "y": 8, "z": 1}
    assert prior.neighbourhood(grid, 128, "rasterization2DColumn 8") == {"x": 8, "y": 16, "z": 1}
    assert prior.neighbourhood((4, 4, 8), 32, "") == {"x": 4, "y": 4, "z": 2}


@pytest.mark.parametrize("lacking", [{"work": None}, {"grid": ()}, {"threads": None}])
def test_of_what_is_not_known_enough_there_is_no_estimate(lacking: dict[str, Any]) -> None:
    facts = msgspec.structs.replace(product(), **lacking)
    assert prior.estimate(facts, figures()) is None
    assert prior.estimates({0: facts, 1: product()}, figures()).keys() == {1}


def by_arch(arch: str) -> Figures:
    return figures(DeviceInfo("0", "Another board", arch=arch))


@pytest.mark.parametrize(
    ("arch", "shape", "runs"),
    [
        ("sm_90a", {"m": 128, "n": 128, "threads": 384}, False),  # three warp groups: rows by 192, or columns by 24
        ("sm_90a", {"m": 192, "n": 128, "threads": 384}, True),
        ("sm_90a", {"m": 64, "n": 96, "threads": 384}, True),
        ("sm_90a", {"m": 96, "n": 128, "threads": 256}, False),  # a warp group has 64 rows
        ("sm_80", {"m": 96, "n": 128, "threads": 256}, True),
        ("sm_80", {"m": 128, "n": 128, "threads": 384}, False),
        ("sm_100a", {"m": 128, "n": 128, "threads": 384}, True),  # sums in tensor memory are not divided
    ],
)
def test_a_product_that_warps_cannot_divide_cannot_run(arch: str, shape: dict[str, int], runs: bool) -> None:
    facts = product(**shape, k=32, stages=1)
    assert prior.can_run(facts, by_arch(arch)) == runs
    assert math.isfinite(prior.estimate(facts, by_arch(arch)) or math.nan)


@pytest.mark.parametrize(
    ("shape", "of_product", "runs"),
    [
        ({"m": 192, "n": 256, "threads": 384, "stages": 2}, {"policy": 1}, False),  # 154 registers, and 512 threads
        ({"m": 192, "n": 256, "threads": 384, "stages": 0}, {"policy": 1}, True),  # without producers 384
        ({"m": 192, "n": 256, "threads": 384, "stages": 2}, {"policy": 1, "sum_bits": 16}, True),
        ({"m": 64, "n": 768, "threads": 384, "stages": 2}, {"policy": 2}, False),  # the same of columns
        ({"m": 384, "n": 128, "threads": 384, "stages": 2}, {"policy": 1}, True),  # two instructions, of 64 rows each
        ({"m": 192, "n": 200, "threads": 384, "stages": 2}, {"policy": 1}, True),
        ({"m": 192, "n": 200, "threads": 384, "stages": 2}, {"policy": 1, "in_registers": True}, False),
    ],
)
def test_sums_of_an_instruction_that_ptxas_has_no_registers_for_cannot_run(
    shape: dict[str, int], of_product: dict[str, int], runs: bool
) -> None:
    facts = product(**shape, k=32)
    assert facts.work is not None
    gemm = msgspec.structs.replace(facts.work.gemms[0], **of_product)
    facts = msgspec.structs.replace(facts, smem_bytes=0, work=msgspec.structs.replace(facts.work, gemms=(gemm,)))
    assert prior.can_run(facts, figures()) == runs
    assert [index for index, _ in prior.choices({0: facts, 1: product()}, figures())].count(0) == runs


DIVISIONS = [(8, 128), (8, 128), (8, 128), (8, 256), (4, 128)]


def test_the_last_choice_divides_the_work_in_another_way_if_any_does() -> None:
    facts = {i: StaticFacts(grid=(grid,), threads=threads) for i, (grid, threads) in enumerate(DIVISIONS)}
    ranked = [(index, 1.0 + index) for index in facts]

    def hedged(n: int, most: int = len(DIVISIONS)) -> list[int]:
        return [index for index, _ in prior.hedged(ranked[:most], facts, n)]

    assert [hedged(n) for n in (1, 2, 3, 4, 5, 9)] == [[0], [0, 3], [0, 3, 4], [0, 1, 3, 4], [*range(5)], [*range(5)]]
    assert hedged(2, most=3) == [0, 1] and hedged(3, most=0) == []
    facts[1] = StaticFacts(smem_bytes=1 << 10, grid=(8,), threads=128)  # more stages, say
    assert hedged(3) == [0, 1, 3]


def test_candidates_within_the_prior_s_error_of_the_first_are_counted() -> None:
    assert prior.alike([(7, 1.0)]) == 0
    assert prior.alike([(7, 1.0), (3, 1.0), (4, 1.04), (5, 1.06)]) == 2


def test_what_a_block_may_not_have_cannot_run() -> None:
    def runs(arch: str, **more: Any) -> bool:
        return prior.can_run(msgspec.structs.replace(product(), **more), by_arch(arch))

    assert runs("sm_90a", smem_bytes=232448) and not runs("sm_90a", smem_bytes=232449)
    assert runs("sm_87", smem_bytes=166912) and not runs("sm_87", smem_bytes=166913)  # its figures are of sm_86
    assert runs("sm_90a", threads=1024, work=None) and not runs("sm_90a", threads=1152, work=None)
    assert prior.can_run(StaticFacts(), by_arch("sm_90a"))
    small = figures(msgspec.structs.replace(H200, limits=DeviceLimits(smem_bytes=100_000)))
    assert not prior.can_run(product(), small)


# ---- devices


@pytest.mark.parametrize(
    ("name", "arch", "sheet"),
    [
        ("NVIDIA H100 80GB HBM3", "sm_90a", "H100"),
        ("NVIDIA H100 PCIe", "sm_90a", "H100 PCIE"),
        ("NVIDIA A10", "sm_86", "A10"),
        ("NVIDIA L4", "sm_89", "L4"),
        ("Another board", "sm_87", "RTX 3090"),
    ],
)
def test_a_device_has_the_figures_of_its_sheet(name: str, arch: str, sheet: str) -> None:
    found, expected = figures(DeviceInfo("0", name, arch=arch)), SHEETS[sheet]
    assert (found.sms, found.memory_bytes_s) == (expected.sms, expected.memory_bytes_s)


@pytest.mark.parametrize(("name", "board"), [("H100-PCIe", "H100 PCIE"), ("rtx4090", "RTX 4090")])
def test_a_board_that_is_not_here_is_named(name: str, board: str) -> None:
    found = device_named(name)
    assert found.name == board and figures(found).sms == SHEETS[board].sms
    assert found.arch in ("sm_90a", "sm_89")


def test_a_device_without_figures_of_its_own_architecture() -> None:
    assert figures_of(DeviceInfo("0", "Tesla V100", arch="sm_70")) is None
    assert figures_of(None, "sm_90a") == figures(DeviceInfo("0", "", arch="sm_90a"))


# ---- the survey


def surveyed(count: int) -> SpaceSurveyed:
    known = {
        place: msgspec.structs.replace(product(stages=place % 4, m=64 + 64 * (place % 97)), smem_bytes=place)
        for place in range(count)
    }
    return SpaceSurveyed(seq=0, time=0.0, mono=0.0, **prior.columns(known, figures()))


def test_a_survey_of_2500_candidates_takes_a_few_100_kb_and_is_read_as_it_was_written() -> None:
    event = surveyed(2500)
    line = encode(event)
    assert len(line) < 400_000 and decode(line) == event
    assert all(value == float(f"{value:.6g}") for value in event.prior if value is not None)


def test_a_strategy_gets_the_numbers_that_the_event_has() -> None:
    event = msgspec.structs.replace(
        surveyed(3), prior=(1.0, None, 0.5), facts={"rounds": (1.0, 2.0, None), "stages": (None, 0.0, None)}
    )
    assert prior.survey_fields(event) == {
        "prior": {0: 1.0, 2: 0.5},
        "facts": {0: {"rounds": 1.0}, 1: {"rounds": 2.0, "stages": 0.0}},
    }
    assert prior.survey_fields(None) == {}
    assert prior.survey_fields(msgspec.structs.replace(event, prior=(), facts={})) == {"prior": None, "facts": {}}
    assert prior.figures_for(Target("c"), [DeviceInfo("cpu", "CPU")]) is None


def test_ranked_takes_equals_and_what_is_not_estimated_by_the_seed() -> None:
    configs = {index: {"x": index} for index in range(20)}
    estimates = {7: 1.0, 3: 2.0, 11: 2.0, 12: 2.0}

    def order(seed: int) -> list[int]:
        strategy = make_strategy("prior", Searched(configs, seed, None, estimates))
        return list(iter(strategy.ask, None))

    assert order(0)[0] == 7 and set(order(0)[1:4]) == {3, 11, 12} and sorted(order(0)) == list(range(20))
    assert order(0) == order(0) and len({tuple(order(seed)) for seed in range(5)}) == 5
