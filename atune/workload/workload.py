"""The work to tune: a kernel factory, its space, the problem, inputs and a reference.

A workload reaches the workers as a `WorkloadRef`: its file and name, or its pickled functions with their source text.
tilelang reads the source of every kernel, even of one typed into a notebook.
"""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Sequence
from typing import Any, Unpack

import msgspec

from atune.errors import WorkloadError
from atune.model.candidate import Candidate, Config, config_key, normalise, space_hash
from atune.model.options import checked, complete, documents, refuse_unknown
from atune.model.space import Space
from atune.workload.amounts import amount
from atune.workload.fingerprint import fingerprint
from atune.workload.introspect import function_of
from atune.workload.listing import Candidates, Listing, check_names, listing
from atune.workload.options import WorkloadOptions
from atune.workload.pickling import FileRef, PickleRef, WorkloadRef, load, parse_file_ref, ship

__all__ = [
    "FileRef",
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


@documents(WorkloadOptions)
class Workload:
    """A kernel to tune.

    Parameters
    ----------
    kernel
        A function that returns a TileLang PrimFunc, plain or under `@tilelang.jit`. Its parameters are the problem's
        arguments and the configuration.
    space
        `Space`, or what `Space(...)` takes as its first argument.
    {options}

    Raises `WorkloadError` or `SpaceError` for arguments that cannot work, such as an axis that the kernel does not
    take. Raises `UsageError`, which is a TypeError too, for an unknown option.
    """

    def __init__(self, kernel: Callable[..., Any], space: Space | Any, **options: Unpack[WorkloadOptions]) -> None:
        refuse_unknown("Workload", options, ["space", *WorkloadOptions.__annotations__])
        given: WorkloadOptions = complete("Workload", options, WorkloadOptions, WorkloadError)  # type: ignore[assignment]
        if not callable(kernel):
            made = type(kernel).__name__
            got = "a PrimFunc: do not call the function" if made == "PrimFunc" else reprlib.repr(kernel)
            raise WorkloadError(f"Workload: kernel must be a function that returns a PrimFunc, got {got}")
        if getattr(kernel, "is_autotuned", False):
            raise WorkloadError(
                "Workload: the kernel is under @atune.autotune, which tunes by itself: call it, or give its .kernel, "
                "the function under the decorator"
            )
        problem, out_idx = given["arguments"] or {}, given["out_idx"]
        self.supply: str | None = given["supply"]
        self.flops, self.bytes = (amount(name, given[name], problem) for name in ("flops", "bytes"))
        checked("Workload", {"flops": self.flops, "bytes": self.bytes}, WorkloadOptions, WorkloadError)
        self.kernel = kernel
        self.space = space if isinstance(space, Space) else Space(space)
        self.name: str = given["name"] or str(getattr(function_of(kernel), "__name__", "kernel"))
        self.arguments: dict[str, Any] = {
            normalise(k, f"Workload {self.name}: argument {k!r}"): normalise(v, f"Workload {self.name}: argument {k!r}")
            for k, v in problem.items()
        }
        self.inputs, self.reference, self.check, self.setup = (
            given["inputs"], given["reference"], given["check"], given["setup"],
        )  # fmt: skip
        self.out_idx = (out_idx,) if isinstance(out_idx, int) else (tuple(out_idx) if out_idx is not None else None)
        self.kernels_out_idx = self.out_idx is None
        """Whether `out_idx` is the kernel's own. After a call, tilelang counts it from the front."""
        if self.out_idx is None:
            jit_outputs = getattr(kernel, "out_idx", None)
            self.out_idx = (jit_outputs,) if isinstance(jit_outputs, int) else tuple(jit_outputs or (-1,))
        self.restore, self.zero = tuple(given["restore"] or ()), tuple(given["zero"] or ())
        self.rtol, self.atol, self.max_mismatched_ratio = given["rtol"], given["atol"], given["max_mismatched_ratio"]
        self.default = None if given["default"] is None else dict(given["default"])
        own = getattr(kernel, "pass_configs", None) or {}
        self.pass_configs: dict[str, Any] = {**own, **(given["pass_configs"] or {})}
        self.source = given["source"]
        check_names(self)

    def candidates(self) -> list[Candidate]:
        """Enumerate the space, or draw from a large one. Raises `SpaceError` for what does not fit the kernel."""
        return [candidate for candidate in Candidates(self).listed() if candidate is not None]

    def default_config(self, candidates: Sequence[Candidate]) -> int | None:
        """Return the index of the default configuration, or None if the space lacks it."""
        known = Candidates(self)
        found = next((candidate.index for candidate in candidates if known.is_default(candidate)), None)
        known.check_default(found)
        return found


class WorkloadSpec(msgspec.Struct, frozen=True):
    """Description of a workload for the engine: plain data without code."""

    name: str
    origin: str
    arguments: dict[str, Any]
    configs: tuple[Config, ...]
    """The candidates in order: all of the space, or a draw from a large one."""
    default: int | None
    fingerprint: str
    has_reference: bool
    out_idx: tuple[int, ...]
    flops: float | None = None
    bytes: float | None = None
    kernel: str = ""
    """SHA-256 of the kernel's source and closure alone, without defaults of the parameters that the space sets."""
    space: str = ""
    """SHA-256 over the configurations' keys in order; empty if it is not computed yet."""
    points: int | None = None
    """Points of a space, before its constraints, of which the configurations are a draw; None if they are all."""
    remarks: tuple[str, ...] = ()
    """Remarks on the space for the user."""
    layout_axes: tuple[str, ...] = ()
    """Names of the axes that lay out fragments and loops."""

    @property
    def total(self) -> int:
        """Number of candidates."""
        return len(self.configs)

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


def describe(workload: Workload, origin: str = "", seed: int = 0) -> WorkloadSpec:
    """Enumerate and fingerprint `workload`; of a large space `seed` draws candidates: see `atune.workload.listing`.

    Raises `SpaceError` and `WorkloadError`.
    """
    return head(workload, origin).listing(listing(workload, seed))
