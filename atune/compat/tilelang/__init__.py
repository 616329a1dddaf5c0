"""The names of `tilelang.autotuner`, on atune's engine: a drop-in replacement that needs one changed import line.

    from atune.compat.tilelang import autotune, AutoTuner, set_autotune_inputs

The kernel in a result is tilelang's own `JITKernel`, whose latency, configuration and reference latency are set. If a
parameter has no meaning here, a `CompatWarning` says once what happens instead. This package may import all of atune
but `testing`. The tuning is done in `frontends`.
"""

from __future__ import annotations

import sys

from atune.workers.server import warm_early
from atune.workers.server_main import import_all

warm_early()  # before the import below, so that worker processes import tilelang at the same time
if not {"tilelang", "torch"} & sys.modules.keys():  # there are no tensors that `import_all` might keep from collections
    import_all(["tilelang", "atune.compat.tilelang.autotuner"])

from atune.compat.tilelang.autotuner import AutoTuneImpl, AutoTuner, AutotuneResult, CompileArgs, ProfileArgs, autotune
from atune.compat.tilelang.environment import (
    ArgumentError,
    CompatWarning,
    ConfigError,
    TuningFailed,
    install,
    uninstall,
)
from atune.stages import tilelang

get_autotune_inputs, set_autotune_inputs = tilelang.capture.get_autotune_inputs, tilelang.capture.set_autotune_inputs

__all__ = [
    "ArgumentError",
    "AutoTuneImpl",
    "AutoTuner",
    "AutotuneResult",
    "CompatWarning",
    "CompileArgs",
    "ConfigError",
    "ProfileArgs",
    "TuningFailed",
    "autotune",
    "get_autotune_inputs",
    "install",
    "set_autotune_inputs",
    "uninstall",
]
