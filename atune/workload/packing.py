"""Pickling that keeps large tensors, arrays and byte strings out of the stream, and does not copy them.

`pack` returns a short stream and references to the large parts. `write` puts both into a file, and may run in a
thread. `unpack` maps that file, so that processes share its pages until they write to them.
"""

from __future__ import annotations

import ast
import copyreg
import dataclasses
import functools
import importlib
import inspect
import io
import mmap
import os
import pickle
import sys
from collections import ChainMap
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from types import CodeType, FunctionType
from typing import Any, ClassVar

import msgspec

from atune.workload.definition import Workload, annotation_names, is_compiled
from atune.workload.source_text import parse_expression

LARGE_BYTES = 1 << 20
"""Least bytes of a part outside the stream."""
SLICE_BYTES = 8 << 20
"""Bytes per write."""
BYTES, PART, STORAGE = "bytes", "part", "torch storage"


class Packed(msgspec.Struct, frozen=True):
    """A pickled value: the stream and its large parts, by value or in the file `path`.

    `buffers`: the parts that are out-of-band buffers of the stream, in order. `spans`: offset and size in the file,
    in bytes, of the stream and of each part.
    """

    stream: bytes
    parts: tuple[Any, ...] = ()
    buffers: tuple[int, ...] = ()
    path: str = ""
    spans: tuple[tuple[int, int], ...] = ()

    @property
    def size(self) -> int:
        """Size by value, in bytes."""
        return len(self.stream) + sum(memoryview(part).nbytes for part in self.parts)


class Part:
    """A large part of a value that is packed inside another value."""

    def __init__(self, memory: Any) -> None:
        self.memory = memory

    def __reduce__(self) -> tuple[Any, ...]:
        return Part, (bytearray(self.memory),)


def pack(value: Any, *, annotations: bool = True) -> Packed:
    """Pickle `value` with its functions and classes. Raises what pickling raises.

    Large parts are referenced and not copied. Their contents at the time of writing count. `annotations`: functions
    bring the globals of their annotations, too.
    """
    apart = _Apart()
    with io.BytesIO() as stream:
        _packer_class()(stream, apart, annotations).dump(value)
        return Packed(stream.getvalue(), tuple(apart.parts), tuple(apart.buffers))


class _Apart:
    """The parts that a packer keeps out of its stream."""

    def __init__(self) -> None:
        self.parts: list[Any] = []
        self.buffers: list[int] = []
        self._places: dict[int, int] = {}
        """Index in `parts` of the memory at an address. Tensors that share memory still share it after unpacking."""

    def place_of(self, one: Any) -> tuple[Any, ...] | None:
        """Return the stream's reference to `one`, or None if `one` stays in the stream."""
        if type(one) is bytes and len(one) >= LARGE_BYTES:
            return BYTES, self._placed(id(one), one)
        if type(one) is Part:
            return PART, self._placed(id(one.memory), one.memory)
        if type(one).__name__ == "TypedStorage" and (memory := _memory(one)) is not None:
            return STORAGE, self._placed(one._data_ptr(), memory), one.dtype
        return None

    def stays(self, buffer: pickle.PickleBuffer) -> bool:
        """Tell whether a buffer stays in the stream. If not, add it to the parts."""
        raw = buffer.raw()
        # CPython crashes when it collects a view of a view that is part of a cycle.
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
    """Make the class on first use, because importing cloudpickle takes time and not every program needs it."""
    import cloudpickle

    class Packer(cloudpickle.Pickler):  # type: ignore[misc]
        dispatch_table: ClassVar[Any] = ChainMap({CodeType: _code}, cloudpickle.Pickler.dispatch_table)

        def __init__(self, stream: io.BytesIO, apart: _Apart, annotations: bool) -> None:
            super().__init__(stream, protocol=5, buffer_callback=apart.stays)
            self._apart, self._annotations = apart, annotations

        def persistent_id(self, one: Any) -> tuple[Any, ...] | None:
            return self._apart.place_of(one)

        def reducer_override(self, one: Any) -> Any:
            if isinstance(one, functools._lru_cache_wrapper):
                by_value = {"__main__", *cloudpickle.list_registry_pickle_by_value()}
                if one.__module__ in by_value or "<locals>" in one.__qualname__:
                    return _remembering, (one.__wrapped__, one.cache_parameters())
            reduced = _tilelangs(one) or super().reducer_override(one)
            if not (self._annotations and isinstance(one, FunctionType) and isinstance(reduced, tuple)):
                return reduced
            make, parts, state, *_, fill = reduced
            return make, parts, (fill, state, _annotation_globals(one)), None, None, _fill_annotated

    return Packer


def _code(code: CodeType) -> tuple[Any, ...]:
    """Reduce `code` as cloudpickle does, with the name of its file, which cloudpickle leaves out from 3.1.3 on."""
    import cloudpickle

    make, parts = cloudpickle.Pickler.dispatch_table[CodeType](code)
    return _in_file, (code.co_filename, make, parts)


def _in_file(name: str, make: Callable[..., CodeType], parts: tuple[Any, ...]) -> CodeType:
    return make(*parts).replace(co_filename=name)


def _annotation_globals(function: FunctionType) -> dict[str, Any]:
    """Return the globals that only annotations of a function name, as far as they can be sent.

    Under ``from __future__ import annotations`` these are strings, which cloudpickle does not parse.
    """
    found = {}
    names = {*_names_in_strings(function.__code__), *annotation_names(function)}
    for name in sorted(names & function.__globals__.keys()):
        with suppress(Exception):  # pickling may raise anything
            if not isinstance(value := function.__globals__[name], Workload):
                pack(value, annotations=False)
                found[name] = value
    return found


def _names_in_strings(code: CodeType) -> Iterator[str]:
    texts = [c for const in code.co_consts for c in (const if isinstance(const, tuple) else (const,))]
    for text in texts:
        if isinstance(text, CodeType):
            yield from _names_in_strings(text)
        elif isinstance(text, str) and len(text) < 1000:
            with suppress(SyntaxError, ValueError):
                yield from (n.id for n in ast.walk(parse_expression(text.strip())) if isinstance(n, ast.Name))


def _fill_annotated(function: Any, filled: tuple[Callable[..., None], Any, dict[str, Any]]) -> None:
    fill, state, annotated = filled
    fill(function, state)
    module = sys.modules.get(function.__module__)  # where Python looks first
    for names in (function.__globals__, {} if module is None else vars(module)):
        names.update({name: value for name, value in annotated.items() if name not in names})


def _remembering(function: Callable[..., Any], parameters: dict[str, Any]) -> Any:
    """Return a function under `functools.lru_cache`, which pickle sends by name alone."""
    return functools.lru_cache(**parameters)(function)


def _tilelangs(one: Any) -> tuple[Any, ...] | None:
    """Reduce a kernel of tilelang to what made it, because what it compiled cannot be sent; None for other objects."""
    if is_compiled(one):
        names = ("target", "target_host", "execution_backend", "verbose", "pass_configs", "compile_flags")
        options = {name: getattr(one, name) for name in names}
        tuned = {name: getattr(one, name) for name in ("latency", "config", "ref_latency")}
        again = importlib.import_module("atune.stages.frontend.jit_kernel").compiled_again
        return again, (one.prim_func, one.out_idx, getattr(one, "roles", None), options, tuned)
    kind = type(one)
    if str(kind.__module__).startswith("tilelang.") and hasattr(kind, "__post_init__"):  # it makes the caches
        fields = {field.name: getattr(one, field.name) for field in dataclasses.fields(one)}
        return copyreg.__newobj__, (kind,), fields, None, None, _fill  # type: ignore[attr-defined]
    return None


def _fill(one: Any, fields: dict[str, Any]) -> None:
    vars(one).update(fields)
    one.__post_init__()


def unpack(packed: Packed) -> Any:
    """Return the packed value. It is as writable as the original, and no other process sees the writes."""
    if packed.path:
        stream, *parts = _mapped(packed.path, packed.spans)
    else:
        stream, parts = memoryview(packed.stream), [memoryview(bytearray(part)) for part in packed.parts]
    return unpack_parts(stream, parts, packed.buffers)


def unpack_parts(stream: bytes | memoryview, parts: Sequence[Any], buffers: Sequence[int]) -> Any:
    """Return the value that was packed into `stream`. It uses the memory of `parts`."""
    return _Unpacker(io.BytesIO(stream), parts, buffers).load()


def write(packed: Packed, path: str) -> Packed:
    """Write a packed value into the new file `path`, and return the value as that file. Raises `OSError`."""
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
    """Return the memory of a torch storage, or None if it is small or does not belong to this process."""
    torch: Any = sys.modules["torch"]
    untyped = storage._untyped_storage
    if untyped.device.type != "cpu" or untyped.nbytes() < LARGE_BYTES:
        return None
    return memoryview(torch.empty(0, dtype=torch.uint8).set_(untyped).numpy())


def _mapped(path: str, spans: Sequence[tuple[int, int]]) -> list[memoryview]:
    """Map a file privately. Writes stay in this process."""
    with open(path, "rb") as file:
        whole = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY))
    return [whole[offset : offset + size] for offset, size in spans]


class LazyCallback:
    """A callback that is unpickled at its first call. `func` is the original, in the caller's process only.

    Workers get a workload by value. Only device workers unpickle parts such as the reference. A CUDA tensor in a
    callback's closure must not make a CUDA context in every compile worker.
    """

    func: Callable[..., Any]

    def __init__(self, function: Callable[..., Any]) -> None:
        self.func = function
        self.__signature__ = _signature(function)
        self.__name__ = getattr(function, "__name__", type(function).__name__)

    def __call__(self, *values: Any, **named: Any) -> Any:
        return self.func(*values, **named)

    def __reduce__(self) -> tuple[Any, ...]:
        packed, identity = pack(self.func), importlib.import_module("atune.workload.fingerprint").identity
        parts = [Part(memory) for memory in packed.parts]
        return UnopenedCallback, (identity(self), packed.stream, self.__signature__, parts, packed.buffers)


class UnopenedCallback:
    """A lazy callback in a worker. `identity`: what it counts as in the workload's fingerprint."""

    def __init__(
        self,
        identity: bytes,
        stream: bytes,
        signature: inspect.Signature,
        parts: Sequence[Part] = (),
        buffers: Sequence[int] = (),
    ) -> None:
        self.identity, self._packed, self.__signature__ = identity, (stream, parts, buffers), signature
        self._function: Callable[..., Any] | None = None

    def __call__(self, *values: Any, **named: Any) -> Any:
        if self._function is None:
            stream, parts, buffers = self._packed
            self._function = unpack_parts(stream, [part.memory for part in parts], buffers)
        assert self._function is not None
        return self._function(*values, **named)

    def __reduce__(self) -> tuple[Any, ...]:
        stream, parts, buffers = self._packed
        return UnopenedCallback, (self.identity, stream, self.__signature__, parts, buffers)


def _signature(function: Callable[..., Any]) -> inspect.Signature:
    try:
        return inspect.signature(function)
    except (TypeError, ValueError):  # some builtins have none
        return inspect.Signature([inspect.Parameter("values", inspect.Parameter.VAR_POSITIONAL)])
