"""Pickling in which what is large is neither copied nor held in the stream: tensors, arrays and byte strings.

`pack` returns a short stream and the large parts as they lie in memory. `write` puts both into a file, which a thread
can do beside an event loop; `unpack` maps that file, so that processes share its pages until they write to them.
"""

from __future__ import annotations

import functools
import importlib
import io
import mmap
import os
import pickle
import sys
from collections.abc import Sequence
from typing import Any

import msgspec

LARGE_BYTES = 1 << 20
"""What is smaller stays in the stream."""
SLICE_BYTES = 8 << 20
"""Bytes that are written at a time."""
BYTES, PART, STORAGE = "bytes", "part", "torch storage"


class Packed(msgspec.Struct, frozen=True):
    """What was pickled: the stream, and its large parts. Either by value, or in the file `path`.

    `buffers`: which of the parts are the stream's own out-of-band buffers, in order. `spans`: offset and size in the
    file of the stream and of each part.
    """

    stream: bytes
    parts: tuple[Any, ...] = ()
    buffers: tuple[int, ...] = ()
    path: str = ""
    spans: tuple[tuple[int, int], ...] = ()

    @property
    def size(self) -> int:
        """Bytes that it takes by value."""
        return len(self.stream) + sum(memoryview(part).nbytes for part in self.parts)


class Part:
    """A large part of something that is packed inside of something else."""

    def __init__(self, memory: Any) -> None:
        self.memory = memory

    def __reduce__(self) -> tuple[Any, ...]:
        return Part, (bytearray(self.memory),)


def pack(value: Any) -> Packed:
    """Pickle `value` with its functions and classes. Raises whatever pickling raises.

    What is large is referred to and not copied: what it holds when it is written counts.
    """
    apart = _Apart()
    with io.BytesIO() as stream:
        _packer_class()(stream, apart).dump(value)
        return Packed(stream.getvalue(), tuple(apart.parts), tuple(apart.buffers))


class _Apart:
    """What a packer keeps out of its stream."""

    def __init__(self) -> None:
        self.parts: list[Any] = []
        self.buffers: list[int] = []
        self._places: dict[int, int] = {}
        """Where the memory at an address is in `parts`: tensors that share it go on sharing it."""

    def place_of(self, one: Any) -> tuple[Any, ...] | None:
        """Return what the stream has in place of `one`; None where it is in the stream itself."""
        if type(one) is bytes and len(one) >= LARGE_BYTES:
            return BYTES, self._placed(id(one), one)
        if type(one) is Part:
            return PART, self._placed(id(one.memory), one.memory)
        if type(one).__name__ == "TypedStorage" and (memory := _memory(one)) is not None:
            return STORAGE, self._placed(one._data_ptr(), memory), one.dtype
        return None

    def stays(self, buffer: pickle.PickleBuffer) -> bool:
        """Tell whether a buffer stays in the stream, and take it out where it does not."""
        raw = buffer.raw()
        # CPython crashes where it collects a view of a view that is part of a cycle.
        if raw.nbytes < LARGE_BYTES or isinstance(raw.obj, memoryview):
            return True
        self.buffers.append(len(self.parts))
        self.parts.append(raw)
        return False

    def _placed(self, address: int, memory: Any) -> int:
        if address not in self._places:
            self._places[address] = len(self.parts)
            self.parts.append(memory)
        return self._places[address]


@functools.cache
def _packer_class() -> Any:
    """Make the class on first use: importing cloudpickle takes time, and not every program needs it."""
    import cloudpickle

    class Packer(cloudpickle.Pickler):  # type: ignore[misc]
        def __init__(self, stream: io.BytesIO, apart: _Apart) -> None:
            super().__init__(stream, protocol=5, buffer_callback=apart.stays)
            self._apart = apart

        def persistent_id(self, one: Any) -> tuple[Any, ...] | None:
            return self._apart.place_of(one)

    return Packer


def unpack(packed: Packed) -> Any:
    """Return what was packed. It can be written to as the original could; nobody else sees that."""
    if packed.path:
        stream, *parts = _mapped(packed.path, packed.spans)
    else:
        stream, parts = memoryview(packed.stream), [memoryview(bytearray(part)) for part in packed.parts]
    return unpack_parts(stream, parts, packed.buffers)


def unpack_parts(stream: bytes | memoryview, parts: Sequence[Any], buffers: Sequence[int]) -> Any:
    """Return what was packed into `stream`, on top of the memory of `parts`."""
    return _Unpacker(io.BytesIO(stream), parts, buffers).load()


def write(packed: Packed, path: str) -> Packed:
    """Write what is packed into the new file `path`, and return it as that file. Raises OSError."""
    spans: list[tuple[int, int]] = []
    with open(path, "xb", buffering=0) as file:
        for part in (packed.stream, *packed.parts):
            offset = file.seek(-file.seek(0, os.SEEK_END) % mmap.PAGESIZE, os.SEEK_END)
            view = memoryview(part).cast("B")
            spans.append((offset, view.nbytes))
            while view:
                view = view[file.write(view[:SLICE_BYTES]) :]
    return Packed(b"", buffers=packed.buffers, path=path, spans=tuple(spans))


class _Unpacker(pickle.Unpickler):
    def __init__(self, stream: io.BytesIO, parts: Sequence[memoryview], buffers: Sequence[int]) -> None:
        super().__init__(stream, buffers=[parts[place] for place in buffers])
        self._parts = parts
        self._storages: dict[int, Any] = {}

    def persistent_load(self, known_as: tuple[Any, ...]) -> Any:
        kind, place, *rest = known_as
        if kind == BYTES:
            return bytes(self._parts[place])
        if kind == PART:
            return Part(self._parts[place])
        torch = importlib.import_module("torch")
        if place not in self._storages:
            self._storages[place] = torch.frombuffer(self._parts[place], dtype=torch.uint8).untyped_storage()
        return torch.storage.TypedStorage(wrap_storage=self._storages[place], dtype=rest[0], _internal=True)


def _memory(storage: Any) -> memoryview | None:
    """Return the memory of a torch storage; None where it is small, or not this process's own."""
    torch: Any = sys.modules["torch"]
    untyped = storage._untyped_storage
    if untyped.device.type != "cpu" or untyped.nbytes() < LARGE_BYTES:
        return None
    return memoryview(torch.empty(0, dtype=torch.uint8).set_(untyped).numpy())


def _mapped(path: str, spans: Sequence[tuple[int, int]]) -> list[memoryview]:
    """Map a file privately: what is written stays in this process."""
    with open(path, "rb") as file:
        whole = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY))
    return [whole[offset : offset + size] for offset, size in spans]
