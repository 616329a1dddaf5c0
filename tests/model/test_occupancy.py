"""Blocks on a multiprocessor, by the figures of the CUDA C++ Programming Guide."""

from __future__ import annotations

import pytest

from atune.model.device import Occupancy, occupancy_of


@pytest.mark.parametrize(
    ("arch", "threads", "registers", "smem_bytes", "expected"),
    [
        ("sm_90a", 1024, 32, 0, Occupancy(2, ("threads", "registers"))),
        ("sm_90a", 256, 32, 227 << 10, Occupancy(1, ("smem",))),  # with 1 KiB that is reserved all there is
        ("sm_90a", 32, 16, 0, Occupancy(32, ("blocks",))),
        ("sm_86", 512, 40, 0, Occupancy(3, ("threads", "registers"))),
        ("sm_90a", 384, 168, 0, Occupancy(1, ("registers",))),  # 12 warps of 5,376
        ("sm_90a", 1024, 255, 0, Occupancy(0, ("registers",))),
    ],
)
def test_what_limits_the_blocks_is_named(
    arch: str, threads: int, registers: int, smem_bytes: int, expected: Occupancy
) -> None:
    assert occupancy_of(arch, threads, registers, smem_bytes) == expected


def test_an_unknown_multiprocessor_has_no_occupancy() -> None:
    assert occupancy_of("sm_50", 128, 32, 0) is None
    assert occupancy_of("", 128, 32, 0) is None
