"""Shards of a space, for machines that share nothing: disjoint, together the whole space, and of equal size."""

from __future__ import annotations

import re
from functools import cached_property

import msgspec

from atune.errors import UsageError
from atune.model.permutation import Permutation

SEED = 0
"""Seed of the permutation that deals candidates out. Journals depend on it, so it stays."""


class Shard(msgspec.Struct, frozen=True):
    """Shard `number` of `count`, from 1."""

    number: int
    count: int

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"

    @classmethod
    def parse(cls, text: str | Shard | None) -> Shard | None:
        """Read ``2/4``. Raises `UsageError` on anything else."""
        if text is None or isinstance(text, Shard):
            return text
        found = re.fullmatch(r"([0-9]{1,9})/([0-9]{1,9})", text) if isinstance(text, str) else None
        if found is None or not 1 <= int(found[1]) <= int(found[2]):
            raise UsageError(f"shard {text!r}: give its number and how many there are, such as 2/4; the first is 1/4")
        return cls(int(found[1]), int(found[2]))


class Sharding(msgspec.Struct, frozen=True, dict=True):
    """The shard of one space: which of its candidates it has.

    `total`: candidates of the whole space, or its points. `space`: the whole space's fingerprint. `large`: the space is
    not listed. Candidates are dealt out in the order of a fixed permutation. A shard of a listed space keeps the
    space's order.
    """

    shard: Shard
    total: int
    space: str
    large: bool = False

    @property
    def size(self) -> int:
        """Candidates of the shard. Sizes of two shards differ by one at most."""
        return max(0, -(-(self.total - self.shard.number + 1) // self.shard.count))

    def whole(self, index: int) -> int:
        """Return the index in the whole space of the shard's candidate `index`."""
        return self._dealt(index) if self.large else self.members[index]

    def own(self, index: int) -> int | None:
        """Return the shard's index of the whole space's candidate `index`; None if another shard has it."""
        position = self._order.position(index)
        if position % self.shard.count != self.shard.number - 1:
            return None
        return position // self.shard.count if self.large else self.members.index(index)

    @cached_property
    def members(self) -> tuple[int, ...]:
        """Indices in the whole space, in its order. Of a listed space only."""
        return tuple(sorted(map(self._dealt, range(self.size))))

    @cached_property
    def _order(self) -> Permutation:
        return Permutation(self.total, SEED)

    def _dealt(self, number: int) -> int:
        return self._order[self.shard.number - 1 + number * self.shard.count]
