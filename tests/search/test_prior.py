"""The prior: what makes its estimate longer, what it says nothing of, and what users' own priors may return."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest

from atune.engine.search import prior
from atune.engine.search.devices import SHEETS, Figures, figures_of
from atune.model.artifact import Access, BlockWork, Gemm, StaticFacts
from atune.model.device import DeviceInfo, DeviceLimits

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


def test_more_blocks_take_longer() -> None:
    times = [ms(product(blocks=blocks)) for blocks in (16, 256, 512, 1024, 4096)]
    assert times == sorted(times) and len(set(times)) == 5


def test_stages_hide_latency() -> None:
    times = [ms(product(stages=stages)) for stages in (4, 3, 2, 1)]
    assert times[0] <= times[1] <= times[2] < times[3]


def test_a_faster_device_is_faster() -> None:
    slower = msgspec.structs.replace(H200, sms=66)
    assert ms(product(), slower) > ms(product())
    idle = msgspec.structs.replace(H200, memory_bytes_s=1e11)
    assert ms(product(), idle) > ms(product())


def test_sums_that_no_thread_can_hold_come_last() -> None:
    spilling = [ms(product(sums=sums)) for sums in (240, 256, 512)]
    assert min(spilling) > 3 * ms(product())
    assert spilling == sorted(spilling)


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
    assert all(math.isfinite(number) for number in prior.features(facts, figures()).values())


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
    assert prior.features(facts, by_arch(arch))["can_run"] == runs
    assert math.isfinite(prior.estimate(facts, by_arch(arch)) or math.nan)


@pytest.mark.parametrize(("m", "feeds", "runs"), [(64, True, False), (64, False, True), (128, True, True)])
def test_a_product_that_feeds_another_needs_whole_rows_in_each_warp(m: int, feeds: bool, runs: bool) -> None:
    facts = product(m=m, n=128, threads=256, stages=1)
    assert facts.work is not None
    first = msgspec.structs.replace(facts.work.gemms[0], feeds=feeds)
    work = msgspec.structs.replace(facts.work, gemms=(first, *facts.work.gemms))
    assert prior.can_run(msgspec.structs.replace(facts, work=work), figures()) == runs


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
        ("NVIDIA A100-SXM4-80GB", "sm_80", "A100"),
        ("NVIDIA GeForce RTX 4090", "sm_89", "RTX 4090"),
        ("NVIDIA A10", "sm_86", "A10"),
        ("NVIDIA L4", "sm_89", "L4"),
        ("Another board", "sm_90a", "H100"),
        ("Another board", "sm_87", "RTX 3090"),
    ],
)
def test_a_device_has_the_figures_of_its_sheet(name: str, arch: str, sheet: str) -> None:
    found, expected = figures(DeviceInfo("0", name, arch=arch)), SHEETS[sheet]
    assert (found.sms, found.clock_hz, found.memory_bytes_s) == (
        expected.sms,
        expected.clock_hz,
        expected.memory_bytes_s,
    )


def test_a_device_without_figures_of_its_own_architecture() -> None:
    assert figures_of(DeviceInfo("0", "Tesla V100", arch="sm_70")) is None
    assert figures_of(None, "sm_90a") == figures(DeviceInfo("0", "", arch="sm_90a"))
