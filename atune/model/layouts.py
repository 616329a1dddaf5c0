"""Results of layout inference for a kernel: which thread holds which elements, and does which iterations."""

from __future__ import annotations

import msgspec


class FragmentFacts(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """A buffer in registers. `slots`: elements that fit each thread's part."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    slots: int
    replication: int = 1
    """How many threads hold each element."""


class SharedFacts(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """A buffer in shared memory. `swizzled`: its elements are not in row order."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    swizzled: bool = False


class LoopFacts(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """A parallel loop. `slots`: iterations of each thread."""

    extents: tuple[int, ...]
    slots: int
    replication: int = 1
    """How many threads do each iteration."""
    redundant: int = 0
    """Iterations of a thread beyond an even share: slots minus ceil(iterations / threads)."""
    width: int = 1
    """Successive neighbours on the last axis in one thread, at most 16. A vector access may be this wide."""
    uneven: bool = False
    """Whether only some threads run it, or store its results."""
    stores: tuple[str, ...] = ()
    """Buffers that it writes to, ``name (scope)`` each."""


class Layouts(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """The layouts of a kernel, in the order of its statements; at most `MOST` of each kind."""

    fragments: tuple[FragmentFacts, ...] = ()
    loops: tuple[LoopFacts, ...] = ()
    shared: tuple[SharedFacts, ...] = ()

    @property
    def slots(self) -> int:
        """Elements of all fragments that fit one thread's part."""
        return sum(fragment.slots for fragment in self.fragments)

    @property
    def redundant(self) -> int:
        """Iterations of all parallel loops that a thread does beyond an even share."""
        return sum(loop.redundant for loop in self.loops)


MOST = 64
"""Limit for each kind, because a journal keeps a candidate's facts in one line."""


class Picture(msgspec.Struct, frozen=True):
    """Which thread holds which element of a fragment: its first rows and columns.

    `threads`, `slots`: by row and column. If several threads hold an element, the first of them counts.
    """

    name: str
    shape: tuple[int, ...]
    replication: int
    threads: tuple[tuple[int, ...], ...]
    slots: tuple[tuple[int, ...], ...]
