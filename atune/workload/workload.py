"""What to tune: a kernel factory, its space, the problem, inputs, and the reference to check against.

A workload reaches the workers as a `WorkloadRef`: the file and name it came from, or its pickled functions together
with their source text (tilelang reads the source of a kernel, also of one typed into a notebook).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from atune.errors import SpaceError, WorkloadError
from atune.model.candidate import COMPILE_FLAGS, PASS_CONFIGS, RESERVED, Candidate, Config, config_key, normalise
from atune.model.space import Space
from atune.workload.fingerprint import fingerprint, kernel_fingerprint
from atune.workload.introspect import function_of, signature_of
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
    "load",
    "parse_file_ref",
    "ship",
]

SUPPLIES = ("auto", "integer", "uniform", "normal", "randn", "zero", "one")
"""tilelang's `TensorSupplyType`, by name."""


Inputs = Callable[..., Sequence[Any]] | Sequence[Any] | None


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
        Operations, and bytes moved to and from memory, of one call at least. A figure faster than the device's peak
        allows is then measured once more in a fresh process.
    rtol, atol
        Tolerances of the check, as in `torch.testing.assert_close`; by default by output dtype.
    max_mismatched_ratio
        Share of elements that may lie outside the tolerances.
    default
        The configuration to compare the winner with; by default the kernel's own parameter defaults.
    source
        The kernel module's source text, for kernels made by `exec` whose source Python cannot find.

    Raises `WorkloadError` or `SpaceError` for what cannot work, such as an axis that the kernel does not take.
    """

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
        flops: float | None = None,
        bytes: float | None = None,
        default: Mapping[str, Any] | None = None,
        pass_configs: Mapping[str, Any] | None = None,
        name: str | None = None,
        source: str | None = None,
    ) -> None:
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
        work = (("flops", flops), ("bytes", bytes))
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
        self.flops, self.bytes = flops, bytes
        self.rtol, self.atol, self.max_mismatched_ratio = rtol, atol, max_mismatched_ratio
        self.default = dict(default) if default is not None else None
        self.pass_configs: dict[str, Any] = {**(getattr(kernel, "pass_configs", None) or {}), **(pass_configs or {})}
        self.source = source

    def candidates(self) -> list[Candidate]:
        """Enumerate the space. Raises `SpaceError` where a configuration does not fit the kernel."""
        parameters = signature_of(self.kernel).parameters
        takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
        required = {
            n for n, p in parameters.items() if p.default is p.empty and p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)
        }
        for name in self.arguments:
            if name not in parameters and not takes_any:
                raise WorkloadError(
                    f"Workload {self.name}: the kernel takes no argument {name!r}; it takes {', '.join(parameters)}"
                )
        found: list[Candidate] = []
        seen: dict[str, int] = {}
        for index, raw in enumerate(self.space.configs(self.arguments)):
            where = f"Workload {self.name}, config {index}"
            config = {normalise(str(k), where): normalise(v, f"{where}: {k!r}") for k, v in raw.items()}
            names = config.keys() - RESERVED
            if unknown := sorted(n for n in names if n not in parameters and not takes_any):
                raise SpaceError(
                    f"{where}: the kernel takes no argument {unknown[0]!r}; it takes "
                    f"{', '.join(n for n in parameters if n not in self.arguments)}"
                )
            if both := sorted(names & self.arguments.keys()):
                raise SpaceError(f"{where}: {both[0]!r} is an axis and a problem argument; give it in one place")
            if missing := sorted(required - names - self.arguments.keys()):
                raise SpaceError(
                    f"{where}: {config} lacks {missing[0]!r}, which the kernel needs; add it there or to arguments"
                )
            if not isinstance(config.get(PASS_CONFIGS, {}), dict):
                raise SpaceError(f"{where}: {PASS_CONFIGS} must be a dict, got {config[PASS_CONFIGS]!r}")
            flags = config.get(COMPILE_FLAGS)
            if flags is not None and not (isinstance(flags, tuple) and all(isinstance(f, str) for f in flags)):
                raise SpaceError(
                    f"{where}: {COMPILE_FLAGS} must be a list of flags, such as ['-O2', '-ffast-math'], or None for "
                    f"those of CompileSettings; got {flags!r}"
                )
            key = config_key(config)
            if key in seen:
                raise SpaceError(f"{where}: {config} occurs twice, first as config {seen[key]}")
            seen[key] = index
            found.append(Candidate(index, key, config))
        return found

    def default_config(self, candidates: Sequence[Candidate]) -> int | None:
        """Return the index of the default configuration, or None where the space does not hold it."""
        parameters = signature_of(self.kernel).parameters
        for candidate in candidates:
            config = self.default
            if config is None:
                config = {n: parameters[n].default for n in candidate.config if n in parameters}
                config |= {n: v for n, v in ((PASS_CONFIGS, {}), (COMPILE_FLAGS, None)) if n in candidate.config}
            try:
                if config_key({k: normalise(v, k) for k, v in config.items()}) == candidate.key:
                    return candidate.index
            except SpaceError:
                return None
        if self.default is not None:
            raise WorkloadError(f"Workload {self.name}: the default {self.default} is not in the space")
        return None


class WorkloadSpec(msgspec.Struct, frozen=True):
    """All that the engine needs to know about a workload: plain data, no code."""

    name: str
    origin: str
    arguments: dict[str, Any]
    configs: tuple[Config, ...]
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


def describe(workload: Workload, origin: str = "") -> WorkloadSpec:
    """Enumerate and fingerprint `workload`. Raises `SpaceError` and `WorkloadError`."""
    candidates = workload.candidates()
    return WorkloadSpec(
        name=workload.name,
        origin=origin,
        arguments=workload.arguments,
        configs=tuple(c.config for c in candidates),
        default=workload.default_config(candidates),
        fingerprint=fingerprint(workload),
        has_reference=workload.reference is not None,
        out_idx=tuple(workload.out_idx or ()),
        flops=workload.flops,
        bytes=workload.bytes,
        former=fingerprint(workload, verbatim=True),
        kernel=kernel_fingerprint(workload.kernel, without_defaults={n for c in candidates for n in c.config}),
    )
