"""The user's callbacks and tensors, in a form for the workers.

Workers get a workload by value. Only a device's process unpacks references, checks and tensors: a CUDA tensor in a
callback's closure must not make a CUDA context in every compile worker.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from atune.model.artifact import KernelParam
from atune.stages.measure.inputs import GivenTensors as GivenTensors
from atune.workload.packing import pack
from atune.workload.sealed import Sealed as Sealed


def supplied(supply_prog: Callable[..., Any]) -> Callable[..., Any]:
    """Return an `inputs` function that calls tilelang's `supply_prog(params)` for each set of inputs."""
    sealed = Sealed(supply_prog)

    def inputs(parameters: Sequence[KernelParam]) -> list[Any]:
        return list(sealed([_tilelang_param(parameter) for parameter in parameters]))

    return inputs


def can_be_sent(callback: Callable[..., Any]) -> bool:
    """Tell whether `callback` can be sent to other processes. A closure over a lock, for example, cannot."""
    try:
        pack(callback)
    except Exception:  # pickling may raise anything
        return False
    return True


def _tilelang_param(parameter: KernelParam) -> Any:
    from tilelang import tvm
    from tilelang.engine.param import KernelParam as Theirs

    shape = [tvm.tirx.Var(d, "int32") if isinstance(d, str) else d for d in parameter.shape or ()]
    return Theirs(tvm.DataType(parameter.dtype), shape)
