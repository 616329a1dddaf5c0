"""nvcc with tilelang's Hopper headers less the instructions that a library does not use; see `wgmma`."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from atune.stages.accelerators import wgmma
from atune.stages.accelerators.base import Accelerator, Host, unless_cuda
from atune.stages.compile.steps import Compiled, CompileJob
from atune.stages.session.session import session

PREPENDED = "NVCC_PREPEND_FLAGS"
"""nvcc puts this variable's flags before those that it is called with."""


class Headers(Accelerator):
    """Has nvcc find shorter headers first, where the user asks nvcc for nothing else."""

    name, version = "headers", 1

    def applies(self, host: Host) -> str:
        if host.verbose:
            return "the compilers' figures are asked for"
        if os.environ.get(PREPENDED):
            return f"{PREPENDED} is set"
        return unless_cuda(host)

    def compile(self, job: CompileJob, plain: Callable[[CompileJob], Compiled]) -> Compiled:
        used = wgmma.uses(job.source)
        if used is not None and not job.pass_configs.get("tl.device_compile_flags"):
            from tilelang.env import CUTLASS_INCLUDE_DIR, TILELANG_TEMPLATE_PATH

            with suppress(Exception):  # whatever is wrong, it is told below
                folder = wgmma.without_unused(TILELANG_TEMPLATE_PATH, CUTLASS_INCLUDE_DIR, used, session().run_dir)
                if folder is not None:
                    with included_first(folder):
                        return plain(job)
        return plain(job)


@contextmanager
def included_first(folder: str) -> Iterator[None]:
    """Have nvcc, called meanwhile, find `folder`'s headers before all others. For where the variable is not set."""
    os.environ[PREPENDED] = f"-I{shlex.quote(folder)}"
    try:
        yield
    finally:
        del os.environ[PREPENDED]
