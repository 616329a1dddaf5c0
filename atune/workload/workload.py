"""A workload's description, and the names that others import to load, describe and send one.

A workload reaches the workers as a `WorkloadRef`: its file and name, or its pickled functions with their source text.
tilelang reads the source of every kernel, even of one typed into a notebook.
"""

from __future__ import annotations

from typing import Any

import msgspec

from atune.model.candidate import Config, config_key, space_hash
from atune.workload.definition import Workload
from atune.workload.fingerprint import fingerprint
from atune.workload.listing import Listing, listing
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
