"""The facts of one configuration that `atune explain` prints."""

from __future__ import annotations

from typing import Any

import msgspec

from atune.model.artifact import StaticFacts
from atune.model.candidate import Candidate, Config
from atune.model.layouts import Layouts, Picture
from atune.model.occupancy import MachineFacts, Occupancy


class ExplainJob(msgspec.Struct, frozen=True):
    """A configuration to compile and explain. `picture`: the fragment to draw; empty: the largest; None: none."""

    candidate: Candidate
    path: str
    picture: str | None = None


class Explained(msgspec.Struct, frozen=True, kw_only=True, tag="explained"):
    """A configuration's facts. Target ``c`` has no `machine`, no spills and no `occupancy`.

    `source`: the device source, with ``kernel`` as the candidate's symbol.
    """

    config: Config
    target: str
    facts: StaticFacts
    source: str
    machine: MachineFacts | None = None
    spill_bytes: int | None = None
    """Bytes of spill stores of a thread, as ``ptxas -v`` counts them: registers that did not fit."""
    spill_load_bytes: int | None = None
    """Bytes of spill loads, counted the same way."""
    occupancy: Occupancy | None = None
    picture: Picture | None = None
    choice: str = ""
    """Of a journal's candidate: what it was preferred to, or passed over for, and why, where layouts were chosen."""

    @property
    def smem_bytes(self) -> int | None:
        """Shared memory of a block, static and dynamic; None for target ``c``."""
        if self.machine is None:
            return self.facts.smem_bytes
        return (self.facts.smem_bytes or 0) + self.machine.static_smem_bytes

    def as_data(self) -> dict[str, Any]:
        """Return it for ``--json``."""
        layouts, machine = self.facts.layouts or Layouts(), self.machine
        return {
            "config": msgspec.to_builtins(self.config),
            "target": self.target,
            "registers": None if machine is None else machine.registers,
            "spill_bytes": self.spill_bytes,
            "spill_load_bytes": self.spill_load_bytes,
            "stack_bytes": None if machine is None else machine.stack_bytes,
            "code_bytes": None if machine is None else machine.code_bytes,
            "smem_bytes": self.smem_bytes,
            "threads": self.facts.threads,
            "grid": list(self.facts.grid),
            "occupancy_blocks": None if self.occupancy is None else self.occupancy.blocks,
            "occupancy_limits": None if self.occupancy is None else list(self.occupancy.limits),
            "fragments": [_whole(one) for one in layouts.fragments],
            "loops": [_whole(one) for one in layouts.loops],
            "shared": [_whole(one) for one in layouts.shared],
            "choice": self.choice or None,
        }


def _whole(facts: msgspec.Struct) -> dict[str, Any]:
    """Return a struct's fields, including defaults."""
    return {name: msgspec.to_builtins(getattr(facts, name)) for name in facts.__struct_fields__}
