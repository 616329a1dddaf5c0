"""The options of a workload. `@autotune` has most of them too. Passing a wrong value raises at once."""

import inspect
import reprlib
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, TypedDict

from atune.errors import WorkloadError, asked, name_and_message
from atune.model.candidate import MUST_BE_PASS_CONFIGS
from atune.model.options import Amount, Share, converted, option

Inputs = Callable[..., Sequence[Any]] | Sequence[Any] | None
Work = float | Callable[..., float] | None
"""Number of operations or bytes of a call, or a function that computes the number from the arguments."""

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
    must = "must be a number, zero or more, or a function of arguments"
    return value if callable(value) else converted(where, value, Amount, must, WorkloadError)


def check_inputs(where: str, value: Any) -> Any:
    """Return `value`. Raises `WorkloadError` if it is neither a list nor a function."""
    if callable(value) or (isinstance(value, Sequence) and not isinstance(value, (str, bytes))):
        return value
    raise WorkloadError(f"{where} must be a list of tensors, or a function that returns one, got {reprlib.repr(value)}")


_FUNCTION = "must be a function of the inputs"
_POSITIONS = "must be positions of parameters, such as [0]"


class SharedOptions(TypedDict, total=False):
    """Options that a workload and `@autotune` share."""

    # fmt: off
    reference: Annotated[Callable[..., Any] | None, option(
        "A function of the inputs that returns the expected output, or a tuple of outputs. Without a reference no "
        "value is checked. If the kernel updates inputs in place, the reference updates them too, or returns their "
        "new values. A reference that takes every parameter writes into the outputs.",
        must=_FUNCTION,
    )]
    out_idx: Annotated[int | Sequence[int] | None, option(
        "Positions of the output parameters; an empty list for none. The default is `@tilelang.jit`'s `out_idx`, or "
        "the tensors that an eager kernel returns; else the parameters that the kernel only writes, and `zero`.",
        must="must be a position of an output, such as -1, or several",
    )]
    rtol: Annotated[Amount | None, option(
        "Relative tolerance of the check, as in `torch.testing.assert_close`. The default depends on the output dtype.",
    )]
    atol: Annotated[Amount | None, option("Absolute tolerance of the check, like `rtol`.")]
    max_mismatched_ratio: Annotated[Share, option(
        "Share of elements that may be outside the tolerances.", default=0.0, must="must be a share, from 0 to 1",
    )]
    check: Annotated[Callable[..., Any] | None, option(
        "A function that judges the outputs. If they are wrong, it returns False or raises; else it returns True or "
        "None. With a reference it gets ``(outputs, reference_outputs)``, like tilelang's `manual_check_prog`; without "
        "a reference it gets ``(inputs, outputs)``. All are lists of tensors.",
        must="must be a function of the outputs",
    )]
    supply: Annotated[Any, option(
        "The supply type that draws inputs, by tilelang's name, such as ``'integer'`` or ``'uniform'``.",
        check=_supply,
    )]
    setup: Annotated[Callable[..., Any] | None, option(
        "A function of the inputs, which is called after they are made on a device and may change them in place. Calls "
        "of the tuned kernel do not repeat it, so if it changed the inputs, atune does not hand out the kernel.",
        must=_FUNCTION,
    )]
    restore: Annotated[Sequence[int] | None, option(
        "Positions of parameters to restore before each call. Inputs that the kernel writes into are detected and "
        "restored anyway. A parameter in this list is not an output, unless `out_idx` has it.",
        default=(), must=_POSITIONS,
    )]
    zero: Annotated[Sequence[int] | None, option(
        "Positions of parameters to set to zero before each call: outputs, or inputs that `out_idx` leaves out. Calls "
        "of the tuned kernel set them to zero, too, except outputs that the caller passes.",
        default=(), must=_POSITIONS,
    )]
    flops: Annotated[Work, option(
        "The least number of operations of a call: a number, or a function of the problem's arguments, by name. It is "
        "the basis of rooflines, and a timing faster than the device's peak is measured again in a fresh process.",
        check=_amount,
    )]
    bytes: Annotated[Work, option(
        "The least number of bytes that a call moves to and from memory, given like `flops`.", check=_amount,
    )]
    default: Annotated[Mapping[str, Any] | None, option(
        "The configuration to compare the winner with. The default is the kernel's own parameter defaults.",
        must="must be a configuration as a dict, such as {'block': 64}",
    )]
    name: Annotated[str | None, option("The kernel's name in journals and reports.", must="must be a text")]
    # fmt: on


class WorkloadOptions(SharedOptions, total=False):
    """Options of `Workload`."""

    # fmt: off
    inputs: Annotated[Inputs, option(
        "A list of tensors for the kernel's input parameters, or a function that returns the list; for one input, it "
        "may return the tensor itself. The function's parameters name what it gets: arguments of the problem, and as "
        "``parameters`` the kernel's input parameters with dtypes and shapes. torch is seeded before the call. By "
        "default, inputs are drawn from the parameters' shapes and dtypes.",
        check=check_inputs,
    )]
    arguments: Annotated[Mapping[str, Any] | None, option(
        "The problem: values of the kernel's other parameters, such as ``{'M': 1024, 'N': 1024}``.",
        must="must be a dict of the kernel's other parameters, such as {'M': 1024}",
    )]
    pass_configs: Annotated[Mapping[str, Any] | None, option(
        "TileLang pass configuration for every candidate, such as ``{'tl.enable_fast_math': True}``.",
        must=MUST_BE_PASS_CONFIGS,
    )]
    source: Annotated[str | None, option(
        "The source text of the kernel's module, for kernels made by `exec`, whose source Python cannot find.",
        must="must be the source text of the kernel's module",
    )]
    # fmt: on


def amount(label: str, given: Work, arguments: Mapping[str, Any]) -> float | None:
    """Return `given` if it is a number, or call the function `given` with the `arguments` that it names.

    Raises `WorkloadError` if the function names other arguments, raises, or does not return a number.
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
