"""The user's callbacks and tensors, made ready for the workers.

Workers get a workload by value. What only a device's process needs (references, checks, tensors) is opened there
alone: a CUDA tensor in a callback's closure must not make a CUDA context in every compile worker.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from atune.model.artifact import KernelParam
from atune.stages.measure.inputs import GivenTensors as GivenTensors
from atune.workload.packing import pack
from atune.workload.sealed import Sealed as Sealed


def supplied(supply_prog: Callable[..., Any]) -> Callable[..., Any]:
    """Return an `inputs` function that asks tilelang's `supply_prog(params)`, anew for each set of inputs."""
    sealed = Sealed(supply_prog)

    def inputs(parameters: Sequence[KernelParam]) -> list[Any]:
        return list(sealed([_tilelang_param(parameter) for parameter in parameters]))

    return inputs


def can_be_sent(callback: Callable[..., Any]) -> bool:
    """Tell whether other processes can get `callback`, with what it refers to. A closure over a lock cannot."""
    try:
        pack(callback)
    except Exception:  # whatever pickling raises
        return False
    return True


def _tilelang_param(parameter: KernelParam) -> Any:
    from tilelang import tvm
    from tilelang.engine.param import KernelParam as Theirs

    shape = [tvm.tirx.Var(d, "int32") if isinstance(d, str) else d for d in parameter.shape or ()]
    return Theirs(tvm.DataType(parameter.dtype), shape)
