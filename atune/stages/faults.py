"""What a call's error says of its device: a fault of the context, a lack of memory, or a refused launch."""

from __future__ import annotations

import re

from atune.errors import name_and_message
from atune.model.artifact import FailureKind

_BEYOND_REPAIR = re.compile(
    r"illegal memory access|misaligned address|unspecified launch failure|illegal instruction|"
    r"device-side assert(?!ions)|invalid program counter|hardware stack error|launch timed out|"
    r"not supported on global/shared address space|\bECC\b|\bNVLink error|Invalid access of peer GPU memory|"
    r"CUDA_ERROR_(ILLEGAL_|MISALIGNED_|LAUNCH_FAILED|LAUNCH_TIMEOUT|ASSERT|HARDWARE_|INVALID_PC|"
    r"INVALID_ADDRESS_SPACE|ECC_|NVLINK_|CONTAINED|TENSOR_MEMORY_LEAK)|"
    r"cudaError(Illegal|Misaligned|LaunchFailure|LaunchTimeout|Assert|HardwareStack|InvalidPc|InvalidAddressSpace|"
    r"ECC|Nvlink|Contained|TensorMemoryLeak)",
    re.IGNORECASE,
)
"""The driver's texts and names of errors that leave a context unusable. The CUDA driver API, «CUresult», says of them:
«This leaves the process in an inconsistent state and any further CUDA work will return the same error». Errors of
broken device memory or links are included."""
_NO_MEMORY = re.compile(
    r"can't allocate memory|out of memory|OutOfMemory|CUDA_ERROR_OUT_OF_MEMORY|cudaErrorMemoryAllocation", re.IGNORECASE
)


def kind_of(error: BaseException) -> FailureKind:
    """Tell what became of a call that raised `error`: after ``fault`` the process's context is beyond repair."""
    text = name_and_message(error)
    if _BEYOND_REPAIR.search(text):
        return "fault"
    return "out_of_memory" if _NO_MEMORY.search(text) else "launch"
