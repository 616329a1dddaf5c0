"""TileLang's roller, asked without a GPU."""

from __future__ import annotations

import importlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from atune.errors import SpaceError

if TYPE_CHECKING:
    from atune.carver import Hardware, MatmulHints

_lock = threading.RLock()


def matmul_hints(wanted: MatmulHints, M: int, N: int, K: int) -> list[dict[str, Any]]:
    """Return up to `topk` distinct configurations, the best first. Raises `SpaceError` where the roller has none."""
    from tilelang.carver import matmul_analysis
    from tilelang.carver.roller.policy import TensorCorePolicy
    from tilelang.carver.roller.rasterization import NoRasterization
    from tilelang.carver.template import MatmulTemplate

    arch = described(wanted.hardware)
    # Not MatmulTemplate(...): its constructor asks for the machine's own GPU, which makes a CUDA context.
    template = MatmulTemplate.__new__(MatmulTemplate)
    template.M, template.N, template.K = M, N, K
    template.trans_A, template.trans_B, template.with_bias = wanted.trans_A, wanted.trans_B, False
    template.in_dtype, template.out_dtype = wanted.in_dtype, wanted.out_dtype
    template.accum_dtype = wanted.accum_dtype
    template.initialize_function()
    with _for_every_target(arch), _asked_first():
        function, tags = matmul_analysis.get_tensorized_func_and_tags(
            template.equivalent_function(), arch.target, allow_gemv=True
        )
    if not tags:
        raise SpaceError(
            f"the roller has no tensor core schedule for M={M}, N={N}, K={K}, {wanted.in_dtype} to "
            f"{wanted.accum_dtype} on {wanted.hardware.arch}"
        )
    found: dict[tuple[Any, ...], dict[str, Any]] = {}
    # Hints that differ in their warps' shapes alone are one configuration: ask for some more.
    for hint in TensorCorePolicy.from_prim_func(func=function, arch=arch, tags=tags).emit_config(2 * wanted.topk):
        (block_M, block_N), (warp_M, warp_N) = hint.block, hint.warp
        config = {
            "block_M": int(block_M),
            "block_N": int(block_N),
            "block_K": int(hint.rstep[0]),
            "num_stages": int(hint.pipeline_stage) if hint.pipeline_stage > 1 else 0,
            "threads": int(block_M // warp_M) * int(block_N // warp_N) * arch.warp_size,
            "swizzle": not isinstance(hint.rasterization_plan, NoRasterization),
        }
        found.setdefault(tuple(config.values()), config)
    return list(found.values())[: wanted.topk]


def described(hardware: Hardware) -> Any:
    """Return the carver's description of a CUDA GPU. Its own constructor reads it from the driver."""
    from tilelang.carver.arch.cuda import CUDA, check_sm_version
    from tvm.target import Target

    arch = CUDA.__new__(CUDA)
    arch.target = Target({"kind": "cuda", "arch": hardware.arch})
    arch.sm_version = check_sm_version(hardware.arch)
    arch.name, arch.platform, arch.device = hardware.arch, "CUDA", None
    arch.compute_capability = str(arch.sm_version)
    arch.smem_cap, arch.max_smem_usage = hardware.smem_bytes, 2 * hardware.smem_bytes
    arch.compute_max_core, arch.reg_cap = hardware.multiprocessors, hardware.registers
    arch.l2_cache_size_bytes = hardware.l2_bytes
    # As in tilelang's constructor: these it does not ask the driver for.
    arch.warp_size, arch.sm_partition = 32, 4
    arch.transaction_size, arch.bandwidth = [32, 128], [750, 12080]
    arch.available_tensor_instructions = None
    return arch


@contextmanager
def _asked_first() -> Iterator[None]:
    """Make tvm check that an attribute exists before reading it.

    The analysis calls `hasattr`. For a missing attribute, tvm's C++ raises. Its first traceback in a process takes a
    second, because it reads the symbols of all libraries.
    """
    from tvm.ir.attrs import DictAttrs

    def read(self: Any, name: str) -> Any:
        if name not in self._dict():
            raise AttributeError(f"DictAttrs has no attribute {name}")
        return reading(self, name)

    with _lock:
        reading, DictAttrs.__getattr__ = DictAttrs.__getattr__, read
        try:
            yield
        finally:
            DictAttrs.__getattr__ = reading


@contextmanager
def _for_every_target(arch: Any) -> Iterator[None]:
    """Have the carver's analysis take `arch` where it would look for the machine's GPU."""
    module: Any = importlib.import_module("tilelang.carver.matmul_analysis")
    with _lock:
        asked, module.get_arch = module.get_arch, lambda _target: arch
        try:
            yield
        finally:
            module.get_arch = asked
