"""What to tune: a kernel factory, its space, the problem, inputs, and the reference to check against.

A workload reaches the workers as a `WorkloadRef`: the file and name it came from, or its pickled functions together
with their source text (tilelang reads the source of a kernel, also of one typed into a notebook).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from atune.errors import WorkloadError
from atune.model.candidate import Candidate, Config, config_key, normalise, space_hash, why_no_pass_configs
from atune.model.grid import AxisValues
from atune.model.options import named_options
from atune.model.settings import BenchmarkSettings, CompileSettings
from atune.model.space import Space
from atune.workload.amounts import Amount, amount
from atune.workload.fingerprint import fingerprint
from atune.workload.introspect import function_of
from atune.workload.listing import Candidates, Listing, listing
from atune.workload.pickling import FileRef, PickleRef, WorkloadRef, load, parse_file_ref, ship

__all__ = [
    "SUPPLIES",
    "FileRef",
    "Inputs",
    "PickleRef",
    "Workload",
    "WorkloadRef",
    "WorkloadSpec",
    "describe",
    "fingerprint",
    "head",
    "load",
    "parse_file_ref",
    "ship",
]

SUPPLIES = ("auto", "integer", "uniform", "normal", "randn", "zero", "one")
"""tilelang's `TensorSupplyType`, by name."""


Inputs = Callable[..., Sequence[Any]] | Sequence[Any] | None

_OF_TUNE = (
    "target", "devices", "strategy", "prior", "budget", "journal", "compile", "benchmark", "on_event", "log",
    "progress",
)  # fmt: skip
_ELSEWHERE = {
    **{name: f"atune.tune(…, {name}=…)" for name in _OF_TUNE},
    **{name: f"CompileSettings({name}=…)" for name in CompileSettings.__struct_fields__},
    **{name: f"BenchmarkSettings({name}=…)" for name in BenchmarkSettings.__struct_fields__},
    "where": "atune.Space(…, where=…)",
}
"""Where options stand that are no workload's."""


class Workload:
    """A kernel to tune.

    Parameters
    ----------
    kernel
        A function of the problem's arguments and the configuration that returns a TileLang PrimFunc, plain or under
        `@tilelang.jit`.
    space
        `Space`, or what `Space(...)` takes as its first argument.
    arguments
        The problem: values of the kernel's other parameters, such as ``{"M": 1024, "N": 1024}``.
    inputs
        Tensors for the kernel's input parameters, or a function that returns them, called with those of the problem's
        arguments that it names (torch is seeded before), and with the kernel's input parameters, dtypes and shapes,
        where it names ``parameters``. Without it they are drawn by the parameters' shapes and dtypes.
    reference
        A function of the inputs that returns the expected output, or a tuple of them. Without it nothing is checked.
        One that takes every parameter writes into the outputs, or judges them: it returns a bool, or raises
        AssertionError.
    out_idx
        Positions of the output parameters; by default `@tilelang.jit`'s `out_idx`, else the last parameter.
    check
        A function that judges the outputs and returns false, or raises, where they are wrong. With a
        reference it gets ``(outputs, reference_outputs)``, as tilelang's `manual_check_prog` does; without one
        ``(inputs, outputs)``. All are lists of tensors.
    supply
        How inputs are drawn: the name of one of tilelang's supply types, such as ``"integer"`` or ``"uniform"``.
    setup
        A function of the inputs, called once they are made on a device, that may change them in place.
    restore, zero
        Positions of parameters to restore, or to set to zero, before each call. Inputs that a kernel writes into are
        found out and restored without being named.
    flops, bytes
        Operations, and bytes moved to and from memory, of one call at least: numbers, or functions of those of the
        problem's arguments that they name. Rooflines are reckoned with them. A figure faster than the device's peak
        allows is then measured once more in a fresh process.
    rtol, atol
        Tolerances of the check, as in `torch.testing.assert_close`; by default by output dtype.
    max_mismatched_ratio
        Share of elements that may lie outside the tolerances.
    default
        The configuration to compare the winner with; by default the kernel's own parameter defaults.
    pass_configs
        TileLang pass configuration for every candidate, such as ``{"tl.enable_fast_math": True}``.
    source
        The kernel module's source text, for kernels made by `exec` whose source Python cannot find.

    Raises `WorkloadError` or `SpaceError` for what cannot work, such as an axis that the kernel does not take, and
    `UsageError`, which is a TypeError too, for an option that there is not.
    """

    @named_options("Workload", _ELSEWHERE)
    def __init__(
        self,
        kernel: Callable[..., Any],
        space: Space | Any,
        *,
        arguments: Mapping[str, Any] | None = None,
        inputs: Inputs = None,
        reference: Callable[..., Any] | None = None,
        out_idx: int | Sequence[int] | None = None,
        rtol: float | None = None,
        atol: float | None = None,
        max_mismatched_ratio: float = 0.0,
        check: Callable[..., Any] | None = None,
        supply: Any = None,
        setup: Callable[..., Any] | None = None,
        restore: Sequence[int] = (),
        zero: Sequence[int] = (),
        flops: Amount = None,
        bytes: Amount = None,
        default: Mapping[str, Any] | None = None,
        pass_configs: Mapping[str, Any] | None = None,
        name: str | None = None,
        source: str | None = None,
    ) -> None:
        if pass_configs is not None and (why := why_no_pass_configs(pass_configs)):
            raise WorkloadError(f"Workload: {why}")
        if not callable(kernel):
            raise WorkloadError(f"Workload: kernel must be a function that returns a PrimFunc, got {kernel!r}")
        if reference is not None and not callable(reference):
            raise WorkloadError(f"Workload: reference must be a function of the inputs, got {reference!r}")
        if check is not None and not callable(check):
            raise WorkloadError(f"Workload: check must be a function of the outputs, got {check!r}")
        if setup is not None and not callable(setup):
            raise WorkloadError(f"Workload: setup must be a function of the inputs, got {setup!r}")
        self.supply = None if supply is None else str(getattr(supply, "name", supply)).lower()
        if self.supply not in (None, *SUPPLIES):
            raise WorkloadError(f"Workload: supply {supply!r} is unknown: give {', '.join(SUPPLIES)}")
        for label, positions in (("restore", restore), ("zero", zero)):
            if isinstance(positions, str) or not all(type(i) is int for i in positions):
                raise WorkloadError(f"Workload: {label} must be positions of parameters, got {positions!r}")
        self.flops, self.bytes = amount("flops", flops, arguments or {}), amount("bytes", bytes, arguments or {})
        work = (("flops", self.flops), ("bytes", self.bytes))
        for label, value in (("rtol", rtol), ("atol", atol), ("max_mismatched_ratio", max_mismatched_ratio), *work):
            if value is not None and not value >= 0:
                raise WorkloadError(f"Workload: {label} must be zero or more, got {value!r}")
        self.kernel = kernel
        self.space = space if isinstance(space, Space) else Space(space)
        self.name: str = name or str(getattr(function_of(kernel), "__name__", "kernel"))
        self.arguments: dict[str, Any] = {
            normalise(k, f"Workload {self.name}: argument {k!r}"): normalise(v, f"Workload {self.name}: argument {k!r}")
            for k, v in (arguments or {}).items()
        }
        self.inputs = inputs
        self.reference = reference
        self.out_idx = (out_idx,) if isinstance(out_idx, int) else (tuple(out_idx) if out_idx is not None else None)
        self.kernels_out_idx = self.out_idx is None
        """Whether `out_idx` is the kernel's own: tilelang counts it from the front once the kernel was called."""
        if self.out_idx is None:
            jit_outputs = getattr(kernel, "out_idx", None)
            self.out_idx = (jit_outputs,) if isinstance(jit_outputs, int) else tuple(jit_outputs or (-1,))
        self.check, self.restore, self.zero = check, tuple(restore), tuple(zero)
        self.setup = setup
        self.rtol, self.atol, self.max_mismatched_ratio = rtol, atol, max_mismatched_ratio
        self.default = dict(default) if default is not None else None
        self.pass_configs: dict[str, Any] = {**(getattr(kernel, "pass_configs", None) or {}), **(pass_configs or {})}
        self.source = source

    def candidates(self) -> list[Candidate]:
        """Enumerate the space. Raises `SpaceError` where a configuration does not fit the kernel."""
        return list(Candidates(self, whole=True).listed())

    def default_config(self, candidates: Sequence[Candidate]) -> int | None:
        """Return the index of the default configuration, or None where the space does not hold it."""
        known = Candidates(self, whole=True)
        found = next((candidate.index for candidate in candidates if known.is_default(candidate)), None)
        known.check_default(found)
        return found


class WorkloadSpec(msgspec.Struct, frozen=True):
    """All that the engine needs to know about a workload: plain data, no code."""

    name: str
    origin: str
    arguments: dict[str, Any]
    configs: tuple[Config, ...]
    """The space in order; empty where it is large."""
    default: int | None
    fingerprint: str
    has_reference: bool
    out_idx: tuple[int, ...]
    flops: float | None = None
    bytes: float | None = None
    former: str = ""
    """The fingerprint as journals of before have it, where comments counted."""
    kernel: str = ""
    """SHA-256 of the kernel's source and closure alone, without the defaults of what the space sets."""
    space: str = ""
    """SHA-256 that tells the space from another; empty for that of the configurations' keys in order."""
    size: int | None = None
    """Points of a large space, refused ones included: a candidate's index is its place among them."""
    remarks: tuple[str, ...] = ()
    """What the user should know of the space."""
    axes: tuple[AxisValues, ...] = ()
    """Of a large space that is a product of axes."""
    layout_axes: tuple[str, ...] = ()
    """Names of a listed space's axes that lay out fragments and loops."""

    @property
    def total(self) -> int:
        """Candidates; of a large space at most."""
        return len(self.configs) if self.size is None else self.size

    def identity(self) -> str:
        """Return what tells the space from another."""
        return self.space or space_hash(config_key(config) for config in self.configs)

    def listing(self, found: Listing) -> WorkloadSpec:
        """Return the description with that of the space in it."""
        return msgspec.structs.replace(self, **{name: getattr(found, name) for name in found.__struct_fields__})


def head(workload: Workload, origin: str = "") -> WorkloadSpec:
    """Describe `workload` but for its space: none of its functions is called. Raises `WorkloadError`."""
    return WorkloadSpec(
        name=workload.name,
        origin=origin,
        arguments=workload.arguments,
        configs=(),
        default=None,
        fingerprint=fingerprint(workload),
        has_reference=workload.reference is not None,
        out_idx=tuple(workload.out_idx or ()),
        flops=workload.flops,
        bytes=workload.bytes,
        former=fingerprint(workload, verbatim=True),
    )


def describe(workload: Workload, origin: str = "", *, whole: bool = False) -> WorkloadSpec:
    """Enumerate and fingerprint `workload`. Raises `SpaceError` and `WorkloadError`.

    A large space is not enumerated, but for `whole`: see `atune.workload.listing`.
    """
    found = listing(workload, whole=whole)
    return head(workload, origin).listing(found)
