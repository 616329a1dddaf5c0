"""Looks up earlier runs' results for a kernel in the artifact store, without lowering it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from atune.model.artifact import Lowered
from atune.model.candidate import Config
from atune.model.device import Target
from atune.model.settings import CompileSettings
from atune.stages.compile import lowering
from atune.stages.compile.steps import context_of
from atune.stages.frontend.frontend import frontend_lock
from atune.system.paths import artifacts_folder, code_file, lowered_file


def lowered_before(ir_key: str) -> Lowered | None:
    """Return an earlier run's lowered kernel, if the artifact store has its library, too."""
    folder = artifacts_folder()
    try:
        found = msgspec.json.decode(lowered_file(folder, ir_key).read_bytes(), type=Lowered)
    except (OSError, msgspec.MsgspecError):
        return None
    return found if found.ir_key == ir_key and code_file(folder, found.store_key).exists() else None


def store_key(
    kernel: Any,
    arguments: Mapping[str, Any],
    config: Config,
    target: Target,
    settings: CompileSettings,
    pass_configs: Mapping[str, Any],
) -> str:
    """Return the artifact store's key for the library of `kernel` with `config`; empty if it has none.

    For the program's own process: it only elaborates the kernel. `pass_configs`: the workload's. Only libraries that no
    accelerator took part in count. Raises what elaboration raises.
    """
    how = lowering.how_of(config, target, settings, pass_configs)
    with frontend_lock:
        context = context_of(target, settings.target_host)
        function = lowering.elaborated(kernel, arguments, config, context.target)
        found = lowered_before(lowering.key_of(function, how))
    return "" if found is None else found.store_key
