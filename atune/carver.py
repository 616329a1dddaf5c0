"""Spaces from TileLang's carver: configurations that its roller recommends for a problem on a given GPU.

Needs no GPU: the hardware is described. tilelang is imported only when the space is enumerated.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

import msgspec

from atune.errors import SpaceError
from atune.model.space import Space

AXES = ("block_M", "block_N", "block_K", "num_stages", "threads", "swizzle")
"""What a recommendation gives for a matrix product."""


class Hardware(msgspec.Struct, frozen=True, kw_only=True):
    """A GPU as the roller's cost model sees it. Defaults are common to compute capabilities 8.0 to 9.0.

    `multiprocessors`: their number. `l2_bytes`: size of the L2 cache. Both stand in the GPU's data sheet.
    """

    arch: str
    """Such as ``sm_90a``."""
    multiprocessors: int
    l2_bytes: int
    smem_bytes: int = 48 * 1024
    """Shared memory of a block that asks for no more than it gets by default: what the carver reads from the driver."""
    registers: int = 65536
    """32-bit registers of a multiprocessor."""


HARDWARE = {
    "sm_80": Hardware(arch="sm_80", multiprocessors=108, l2_bytes=40 << 20),
    "sm_90a": Hardware(arch="sm_90a", multiprocessors=132, l2_bytes=50 << 20),
}
"""A100 (NVIDIA A100 Tensor Core GPU Architecture, table 4) and H100 / H200 SXM5 (NVIDIA H100 white paper, table 3)."""


class MatmulHints(msgspec.Struct, frozen=True):
    """The callable behind `matmul_space`: the problem's M, N and K → configurations.

    `hardware`, `topk`, `in_dtype`, `out_dtype`, `accum_dtype`, `trans_A`, `trans_B` and `names` are what `matmul_space`
    was given.
    """

    hardware: Hardware
    topk: int
    in_dtype: str
    out_dtype: str
    accum_dtype: str
    trans_A: bool
    trans_B: bool
    names: dict[str, str]

    def __call__(self, M: int, N: int, K: int) -> list[dict[str, Any]]:
        hints = importlib.import_module("atune.stages.frontend.roller").matmul_hints(self, M, N, K)
        return [{self.names.get(axis, axis): hint[axis] for axis in AXES} for hint in hints]


def matmul_space(
    *,
    topk: int = 20,
    arch: str | Hardware = "sm_90a",
    in_dtype: str = "float16",
    out_dtype: str = "float16",
    accum_dtype: str = "float32",
    trans_A: bool = False,
    trans_B: bool = True,
    names: Mapping[str, str] | None = None,
) -> Space:
    """Return the `topk` configurations that TileLang's roller recommends for C = A @ B, the best first.

    The problem's arguments must have `M`, `N` and `K`. The axes are `block_M`, `block_N`, `block_K`, `num_stages` (0
    where the roller does not pipeline), `threads` and `swizzle`; `names` gives them other names, such as
    ``{"threads": "thread_num"}``. Where the roller has fewer distinct ones than `topk`, the space has those.

    `arch`: one of `HARDWARE`, or a GPU described by a `Hardware`. `in_dtype`, `out_dtype`, `accum_dtype`: TileLang's
    names of the types of A and B, of C, and of the sums. `trans_A`, `trans_B`: whether A is given as (K, M), and B as
    (N, K).

    Raises `SpaceError` for an `arch` that is not in `atune.carver.HARDWARE` (give a `Hardware` then), a `topk` below
    one, and unknown axes in `names`. Enumerating raises it where the roller has no tensor core schedule.
    """
    if isinstance(arch, str):
        if arch not in HARDWARE:
            known = ", ".join(HARDWARE)
            raise SpaceError(f"matmul_space: arch {arch!r} is not described; use {known}, or give a Hardware")
        arch = HARDWARE[arch]
    if topk < 1:
        raise SpaceError(f"matmul_space: topk must be at least 1, got {topk!r}")
    if unknown := sorted(set(names or {}) - set(AXES)):
        raise SpaceError(f"matmul_space: names has {unknown[0]!r}; the axes are {', '.join(AXES)}")
    return Space(
        MatmulHints(arch, topk, in_dtype, out_dtype, accum_dtype, trans_A, trans_B, dict(names or {})),
    )
