"""The work to tune: a kernel factory, its space, the problem, inputs and a reference.

A workload reaches the workers as a `WorkloadRef`: its file and name, or its pickled functions with their source text.
tilelang reads the source of every kernel, even of one typed into a notebook.
"""

from __future__ import annotations

import reprlib
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
from atune.workload.listing import Candidates, Listing, check_names, listing
from atune.workload.pickling import FileRef, PickleRef, WorkloadRef, load, parse_file_ref, ship
from atune.workload.values import check_values, supply_name

__all__ = [
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

Inputs = Callable[..., Sequence[Any]] | Sequence[Any] | None

_OF_TUNE = (
    "target", "devices", "strategy", "prior", "seed", "budget", "audit", "pipeline", "warm",
    "journal", "compile", "benchmark", "on_event", "log", "progress", "accept", "cluster", "machine",
)  # fmt: skip
"""The options of `tune`, whose own list lies above this module; a test compares them."""
_ELSEWHERE = {
    **{name: f"atune.tune(…, {name}=…)" for name in _OF_TUNE},
    **{name: f"CompileSettings({name}=…)" for name in CompileSettings.__struct_fields__},
    **{name: f"BenchmarkSettings({name}=…)" for name in BenchmarkSettings.__struct_fields__},
    "where": "atune.Space(…, where=…)",
}
"""Where to put options that do not belong to a workload."""


class Workload:
    """A kernel to tune.

    Parameters
    ----------
    kernel
        A function that returns a TileLang PrimFunc, plain or under `@tilelang.jit`. Its parameters are the problem's
        arguments and the configuration.
    space
        `Space`, or what `Space(...)` takes as its first argument.
    arguments
        The problem: values of the kernel's other parameters, such as ``{"M": 1024, "N": 1024}``.
    inputs
        Tensors for the kernel's input parameters, or a function that returns them. The function gets the arguments
        of the problem that it names. If it names ``parameters``, it gets the kernel's input parameters with dtypes
        and shapes. torch is seeded before the call. By default, inputs are drawn from the parameters' shapes and
        dtypes.
    reference
        A function of the inputs that returns the expected output, or a tuple of them. Without it nothing is checked.
        A reference that takes every parameter writes into the outputs, or judges them. To judge, it returns a bool
        or raises AssertionError.
    out_idx
        Positions of the output parameters. The default is `@tilelang.jit`'s `out_idx`, else the last parameter.
    check
        A function that judges the outputs. It returns false, or raises, if they are wrong. With a reference it gets
        ``(outputs, reference_outputs)``, like tilelang's `manual_check_prog`. Without one it gets
        ``(inputs, outputs)``. All are lists of tensors.
    supply
        The name of a supply type of tilelang, such as ``"integer"`` or ``"uniform"``, for drawing inputs.
    setup
        A function of the inputs. It is called after they are made on a device, and may change them in place.
    restore, zero
        Positions of parameters to restore, or to set to zero, before each call. Inputs that the kernel writes into
        are detected and restored without this.
    flops, bytes
        The least operations of one call, and the least bytes moved to and from memory. Give numbers, or functions of
        arguments of the problem, by name. Rooflines are computed from them. A timing faster than the device's peak is
        then measured again in a fresh process.
    rtol, atol
        Tolerances of the check, as in `torch.testing.assert_close`. The default depends on the output dtype.
    max_mismatched_ratio
        Share of elements that may lie outside the tolerances.
    default
        The configuration to compare the winner with. The default is the kernel's own parameter defaults.
    pass_configs
        TileLang pass configuration for every candidate, such as ``{"tl.enable_fast_math": True}``.
    source
        The kernel module's source text, for kernels made by `exec`, whose source Python cannot find.

    Raises `WorkloadError` or `SpaceError` for arguments that cannot work, such as an axis that the kernel does not
    take. Raises `UsageError`, which is a TypeError too, for an unknown option.
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
            made = type(kernel).__name__
            got = "a PrimFunc: do not call the function" if made == "PrimFunc" else reprlib.repr(kernel)
            raise WorkloadError(f"Workload: kernel must be a function that returns a PrimFunc, got {got}")
        if getattr(kernel, "is_autotuned", False):
            raise WorkloadError(
                "Workload: the kernel is under @atune.autotune, which tunes by itself: call it, or give its .kernel, "
                "the function under the decorator"
            )
        check_values("Workload", {
            "arguments": arguments, "inputs": inputs, "reference": reference, "check": check, "setup": setup,
            "out_idx": out_idx, "restore": restore, "zero": zero, "rtol": rtol, "atol": atol,
            "max_mismatched_ratio": max_mismatched_ratio, "supply": supply, "flops": flops, "bytes": bytes,
            "default": default, "name": name, "source": source,
        })  # fmt: skip
        self.supply = None if supply is None else supply_name(supply)
        self.flops, self.bytes = amount("flops", flops, arguments or {}), amount("bytes", bytes, arguments or {})
        check_values("Workload", {"flops": self.flops, "bytes": self.bytes})
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
        """Whether `out_idx` is the kernel's own. After a call, tilelang counts it from the front."""
        if self.out_idx is None:
            jit_outputs = getattr(kernel, "out_idx", None)
            self.out_idx = (jit_outputs,) if isinstance(jit_outputs, int) else tuple(jit_outputs or (-1,))
        self.check, self.restore, self.zero = check, tuple(restore or ()), tuple(zero or ())
        self.setup = setup
        self.rtol, self.atol, self.max_mismatched_ratio = rtol, atol, max_mismatched_ratio
        self.default = dict(default) if default is not None else None
        self.pass_configs: dict[str, Any] = {**(getattr(kernel, "pass_configs", None) or {}), **(pass_configs or {})}
        self.source = source
        check_names(self)

    def candidates(self) -> list[Candidate]:
        """Enumerate the space. Raises `SpaceError` if a configuration does not fit the kernel."""
        return list(Candidates(self, whole=True).listed())

    def default_config(self, candidates: Sequence[Candidate]) -> int | None:
        """Return the index of the default configuration, or None if the space lacks it."""
        known = Candidates(self, whole=True)
        found = next((candidate.index for candidate in candidates if known.is_default(candidate)), None)
        known.check_default(found)
        return found


class WorkloadSpec(msgspec.Struct, frozen=True):
    """Description of a workload for the engine: plain data without code."""

    name: str
    origin: str
    arguments: dict[str, Any]
    configs: tuple[Config, ...]
    """The space in order. Empty for a large space."""
    default: int | None
    fingerprint: str
    has_reference: bool
    out_idx: tuple[int, ...]
    flops: float | None = None
    bytes: float | None = None
    kernel: str = ""
    """SHA-256 of the kernel's source and closure alone, without defaults of the parameters that the space sets."""
    space: str = ""
    """SHA-256 that identifies the space. Empty if it is that of the configurations' keys in order."""
    size: int | None = None
    """Points of a large space, including refused ones. A candidate's index is its place among them."""
    remarks: tuple[str, ...] = ()
    """A remark on the space for the user."""
    axes: tuple[AxisValues, ...] = ()
    """Axes of a large space that is a product of axes."""
    layout_axes: tuple[str, ...] = ()
    """Names of a listed space's axes that lay out fragments and loops."""

    @property
    def total(self) -> int:
        """Number of candidates. An upper bound for a large space."""
        return len(self.configs) if self.size is None else self.size

    def identity(self) -> str:
        """Return the fingerprint of the space."""
        return self.space or space_hash(config_key(config) for config in self.configs)

    def listing(self, found: Listing) -> WorkloadSpec:
        """Return this description completed with that of the space."""
        return msgspec.structs.replace(self, **{name: getattr(found, name) for name in found.__struct_fields__})


def head(workload: Workload, origin: str = "") -> WorkloadSpec:
    """Describe `workload` without its space, and call none of its functions. Raises `WorkloadError`."""
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
    )


def describe(workload: Workload, origin: str = "", *, whole: bool = False) -> WorkloadSpec:
    """Enumerate and fingerprint `workload`. Raises `SpaceError` and `WorkloadError`.

    A large space is enumerated only if `whole` is set: see `atune.workload.listing`.
    """
    found = listing(workload, whole=whole)
    return head(workload, origin).listing(found)
