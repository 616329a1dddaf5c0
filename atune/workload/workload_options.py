"""The options of a workload, most of which `@autotune` also has. A wrong value raises an error immediately."""

import inspect
import reprlib
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, TypedDict

from atune.errors import WorkloadError, asked, name_and_message
from atune.model.candidate import MUST_BE_PASS_CONFIGS
from atune.model.options import Amount, Share, converted, option

Inputs = Callable[..., Sequence[Any]] | Sequence[Any] | None
Work = float | Callable[..., float] | None
"""Number of operations or bytes of a call, or a function of the problem's arguments that returns the number."""

SUPPLIES = ("auto", "integer", "uniform", "normal", "randn", "zero", "one")
"""Names of tilelang's `TensorSupplyType`."""


def supply_name(value: Any) -> str:
    """Return atune's name for a supply type, which may be a `TensorSupplyType` of tilelang."""
    return str(getattr(value, "name", value)).lower()


def _supply(where: str, value: Any) -> str:
    if (name := supply_name(value)) not in SUPPLIES:
        raise WorkloadError(f"{where} {value!r} is unknown: give {', '.join(SUPPLIES)}")
    return name


def _amount(where: str, value: Any) -> Any:
    must = "must be a number that is not negative, or a function of arguments"
    return value if callable(value) else converted(where, value, Amount, must, WorkloadError)


def check_inputs(where: str, value: Any) -> Any:
    """Return `value`. Raises `WorkloadError` if `value` is neither a list nor a function."""
    if callable(value) or (isinstance(value, Sequence) and not isinstance(value, (str, bytes))):
        return value
    raise WorkloadError(f"{where} must be a list of tensors, or a function that returns one, got {reprlib.repr(value)}")


_FUNCTION = "must be a function of the inputs"
_POSITIONS = "must be positions of parameters, such as [0]"


class SharedOptions(TypedDict, total=False):
    """Options that a workload and `@autotune` share."""

    # fmt: off
    reference: Annotated[Callable[..., Any] | None, option(
        "A function of the inputs that returns the expected output, or a tuple of outputs. Without a reference, values "
        "are not checked. If the kernel updates inputs in place, the reference must also update them, or return the "
        "new values. If the reference takes every parameter of the kernel, it must write its results into the outputs.",
        must=_FUNCTION,
    )]
    out_idx: Annotated[int | Sequence[int] | None, option(
        "Positions of the output parameters; an empty list if the kernel has no outputs. The default is the `out_idx` "
        "of `@tilelang.jit`, or the tensors that an eager kernel returns. If there are neither, the outputs are the "
        "parameters that the kernel only writes, and the parameters in `zero`.",
        must="must be the position of an output, such as -1, or a list of positions",
    )]
    rtol: Annotated[Amount | None, option(
        "Relative tolerance of the check, as in `torch.testing.assert_close`. The default depends on the output dtype.",
    )]
    atol: Annotated[Amount | None, option("Absolute tolerance of the check, like `rtol`.")]
    max_mismatched_ratio: Annotated[Share, option(
        "Share of elements that may be outside the tolerances.", default=0.0, must="must be a share, from 0 to 1",
    )]
    check: Annotated[Callable[..., Any] | None, option(
        "A function that judges the outputs. If the outputs are wrong, it must return False or raise; otherwise True "
        "or None. With a reference, the function gets ``(outputs, reference_outputs)``, like `manual_check_prog` in "
        "tilelang; without a reference, it gets ``(inputs, outputs)``. Each argument is a list of tensors.",
        must="must be a function of the outputs",
    )]
    supply: Annotated[Any, option(
        "Name of the supply type (of tilelang) that draws the inputs, such as ``'integer'`` or ``'uniform'``.",
        check=_supply,
    )]
    setup: Annotated[Callable[..., Any] | None, option(
        "A function that is called with the inputs after they are made on a device, and may change them in place. If "
        "the function changes an input, atune does not hand out the kernel, because its calls do not run `setup`.",
        must=_FUNCTION,
    )]
    restore: Annotated[Sequence[int] | None, option(
        "Positions of parameters to restore before each call. Inputs that the kernel writes into are restored even if "
        "they are not listed. A parameter in this list is an output only if `out_idx` also has its position.",
        default=(), must=_POSITIONS,
    )]
    zero: Annotated[Sequence[int] | None, option(
        "Positions of parameters to set to zero before each call: outputs, or inputs that are not in `out_idx`. A call "
        "of the tuned kernel also sets these parameters to zero, unless they are outputs that the caller passes.",
        default=(), must=_POSITIONS,
    )]
    flops: Annotated[Work, option(
        "The least number of operations of a call: a number, or a function that takes arguments of the problem by "
        "name. Rooflines use this number. A timing faster than the device's peak is measured again in a fresh process.",
        check=_amount,
    )]
    bytes: Annotated[Work, option(
        "The least number of bytes that a call moves to and from memory: a number or a function, like `flops`.",
        check=_amount,
    )]
    default: Annotated[Mapping[str, Any] | None, option(
        "The configuration to compare the winner with. By default, its values are the kernel's own defaults.",
        must="must be a configuration as a dict, such as {'block': 64}",
    )]
    name: Annotated[str | None, option("The kernel's name in journals and reports.", must="must be a string")]
    # fmt: on


class WorkloadOptions(SharedOptions, total=False):
    """Options of `Workload`."""

    # fmt: off
    inputs: Annotated[Inputs, option(
        "A list of tensors for the kernel's input parameters, or a function that returns the list. If there is only "
        "one input, the function may return the tensor. The function may take arguments of the problem by name, and "
        "``parameters``, which stands for the kernel's input parameters with their dtypes and shapes. torch is seeded "
        "before the call. By default, inputs are drawn at random, with the shapes and dtypes of the parameters.",
        check=check_inputs,
    )]
    arguments: Annotated[Mapping[str, Any] | None, option(
        "The problem, which consists of values for the kernel's other parameters, such as ``{'M': 1024, 'N': 1024}``.",
        must="must be a dict of the kernel's other parameters, such as {'M': 1024}",
    )]
    pass_configs: Annotated[Mapping[str, Any] | None, option(
        "TileLang pass configuration for every candidate, such as ``{'tl.enable_fast_math': True}``.",
        must=MUST_BE_PASS_CONFIGS,
    )]
    source: Annotated[str | None, option(
        "The source text of the kernel's module, if `exec` made the kernel, so that Python cannot find the source.",
        must="must be the source text of the kernel's module",
    )]
    # fmt: on


def amount(label: str, given: Work, arguments: Mapping[str, Any]) -> float | None:
    """Return `given` if it is a number; if `given` is a function, return its result for the `arguments` that it takes.

    Raises `WorkloadError` if the function has other parameters, raises, or does not return a number.
    """
    if not callable(given):
        return given
    raised = lambda error: WorkloadError(f"Workload: {label} raised {name_and_message(error)}")  # noqa: E731
    names = asked(lambda: inspect.signature(given).parameters, raised)
    if unknown := [name for name in names if name not in arguments]:
        raise WorkloadError(f"Workload: {label} takes {unknown[0]!r}, which is not an argument of the problem")
    number = asked(lambda: given(**{name: arguments[name] for name in names}), raised)
    if isinstance(number, bool) or not isinstance(number, int | float):
        raise WorkloadError(f"Workload: {label} must return a number, got {number!r}")
    return number
