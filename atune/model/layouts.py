"""What layout inference decided about a kernel: which thread holds what, and which thread does what."""

from __future__ import annotations

import msgspec


class FragmentFacts(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """A buffer in registers. `slots`: elements that each thread has room for."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    slots: int
    replication: int = 1
    """How many threads hold each element."""


class SharedFacts(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """A buffer in shared memory. `swizzled`: its elements are not in the order of rows."""

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
    """Iterations of a thread beyond an even share: slots less ceil(iterations / threads)."""
    width: int = 1
    """Neighbours on the last axis that follow each other in one thread, 16 at most: a vector access may be as wide."""
    uneven: bool = False
    """Whether only some threads do it, or store what it makes."""
    stores: tuple[str, ...] = ()
    """Buffers that it writes to, ``name (scope)`` each."""


class Layouts(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """The layouts of a kernel, in the order of its statements; `MOST` of each kind at most."""

    fragments: tuple[FragmentFacts, ...] = ()
    loops: tuple[LoopFacts, ...] = ()
    shared: tuple[SharedFacts, ...] = ()

    @property
    def slots(self) -> int:
        """Elements of all fragments that a thread has room for."""
        return sum(fragment.slots for fragment in self.fragments)

    @property
    def redundant(self) -> int:
        """Iterations of all parallel loops that a thread does beyond an even share."""
        return sum(loop.redundant for loop in self.loops)


MOST = 64
"""Of a kind. A journal keeps a candidate's facts in one line."""


class Picture(msgspec.Struct, frozen=True):
    """Which thread holds which element of a fragment: its first rows and columns.

    `threads`, `slots`: by row and column; of an element that several threads hold, the first of them.
    """

    name: str
    shape: tuple[int, ...]
    replication: int
    threads: tuple[tuple[int, ...], ...]
    slots: tuple[tuple[int, ...], ...]
