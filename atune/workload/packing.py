"""Pickle values for workers, with large tensors and arrays outside the stream, and explain why pickling failed.

`pack` returns a short stream, and views of the large buffers. `write` puts the stream and the buffers into a file, and
may run in a thread. `unpack` maps the file into memory, so that processes share its pages until they write to them.
"""

from __future__ import annotations

import copyreg
import dataclasses
import functools
import importlib
import inspect
import io
import mmap
import pickle
import pkgutil
import sys
from collections import ChainMap
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any, ClassVar

import msgspec

from atune.errors import message_of
from atune.workload.fingerprint import annotation_names, function_of, global_names, identity, is_autotuned, is_compiled
from atune.workload.workload import Workload

LARGE_BYTES = 1 << 20
"""Buffers of at least this size in bytes stay outside the stream."""


class Packed(msgspec.Struct, frozen=True):
    """A pickled value: its stream and its large buffers, which are all in memory or all in the file `path`.

    `spans`: for the stream and for each buffer, its offset and size in the file, in bytes.
    """

    stream: bytes
    buffers: tuple[Any, ...] = ()
    path: str = ""
    spans: tuple[tuple[int, int], ...] = ()

    @property
    def size(self) -> int:
        """Size in memory, in bytes."""
        return len(self.stream) + sum(memoryview(buffer).nbytes for buffer in self.buffers)


def pack(value: Any, *, annotations: bool = True, opened: bool = False) -> Packed:
    """Pickle `value`, including its functions and classes. Pickling may raise any exception.

    Large tensors and arrays are not copied, so the file gets the content that they have when it is written.
    `annotations`: whether to include globals that are named in annotations of functions. `opened`: whether to include
    the functions of lazy callbacks, which may then refer to `value`.
    """
    buffers: list[Any] = []

    def stays(buffer: pickle.PickleBuffer) -> bool:
        raw = buffer.raw()
        # CPython crashes when it collects a view of a view that is part of a cycle.
        if raw.nbytes < LARGE_BYTES or isinstance(raw.obj, memoryview):
            return True
        buffers.append(raw)
        return False

    with io.BytesIO() as stream:
        _packer_class()(stream, stays, annotations, opened).dump(value)
        return Packed(stream.getvalue(), tuple(buffers))


@functools.cache
def _packer_class() -> Any:
    """Make the class on first use, because importing cloudpickle takes time, and not every program needs it."""
    import cloudpickle

    class Packer(cloudpickle.Pickler):  # type: ignore[misc]
        dispatch_table: ClassVar[Any] = ChainMap({CodeType: _code}, cloudpickle.Pickler.dispatch_table)

        def __init__(
            self, stream: io.BytesIO, stays: Callable[[pickle.PickleBuffer], bool], annotations: bool, opened: bool
        ) -> None:
            super().__init__(stream, protocol=5, buffer_callback=stays)
            self._annotations, self._opened = annotations, opened

        def reducer_override(self, obj: Any) -> Any:
            if self._opened and isinstance(obj, LazyCallback) and obj._sent is None:
                return copyreg.__newobj__, (LazyCallback,), vars(obj)  # type: ignore[attr-defined]
            if isinstance(obj, functools._lru_cache_wrapper) or is_autotuned(obj):
                by_value, tuned = {"__main__", *cloudpickle.list_registry_pickle_by_value()}, is_autotuned(obj)
                if obj.__module__ in by_value or (not obj.by_name if tuned else "<locals>" in obj.__qualname__):
                    return obj.by_value() if tuned else (_lru_cached, (obj.__wrapped__, obj.cache_parameters()))
            reduced = _storage(obj) or _tilelang_object(obj) or _by_name(obj) or super().reducer_override(obj)
            if not (self._annotations and isinstance(obj, FunctionType) and isinstance(reduced, tuple)):
                return reduced
            make, parts, state, *_, fill = reduced
            return make, parts, (fill, state, _annotation_globals(obj)), None, None, _fill_annotated

    return Packer


def _code(code: CodeType) -> tuple[Any, ...]:
    """Reduce `code` as cloudpickle does, but keep the name of its file, which cloudpickle omits since 3.1.3."""
    import cloudpickle

    make, parts = cloudpickle.Pickler.dispatch_table[CodeType](code)
    return _in_file, (code.co_filename, make, parts)


def _in_file(name: str, make: Callable[..., CodeType], parts: tuple[Any, ...]) -> CodeType:
    return make(*parts).replace(co_filename=name)


def _annotation_globals(function: FunctionType) -> dict[str, Any]:
    """Return the globals that are named in a function's annotations, as far as they can be pickled.

    Under ``from __future__ import annotations``, annotations are strings, in which cloudpickle finds no names.
    """
    known = {}
    for name in annotation_names(function):
        value = function.__globals__.get(name)
        if value is not None and not isinstance(value, Workload):
            with suppress(Exception):  # pickling may raise anything
                pack(value, annotations=False)
                known[name] = value
    return known


def _fill_annotated(function: Any, filled: tuple[Callable[..., None], Any, dict[str, Any]]) -> None:
    fill, state, annotated = filled
    fill(function, state)
    module = sys.modules.get(function.__module__)  # where Python looks first
    for names in (function.__globals__, {} if module is None else vars(module)):
        names.update({name: value for name, value in annotated.items() if name not in names})


def _lru_cached(function: Callable[..., Any], parameters: dict[str, Any]) -> Any:
    """Wrap a function in `functools.lru_cache`. pickle itself sends a wrapped function only by name."""
    return functools.lru_cache(**parameters)(function)


def _by_name(obj: Any) -> tuple[Any, ...] | None:
    """Reduce an object that a worker can find by its name; return None for any other object.

    Such objects are torch's operators, classes of pybind11, and modules of a special class, such as torch.backends.
    """
    kind, name = type(obj), ""
    with suppress(Exception):
        if isinstance(obj, ModuleType) and kind is not ModuleType:
            name = obj.__name__
        elif kind.__module__ == "torch._ops":
            name = f"torch.ops.{obj}"
        elif kind.__name__ == "pybind11_type":  # its module may hold it under another name
            name = next(f"{obj.__module__}.{n}" for n, v in vars(sys.modules[obj.__module__]).items() if v is obj)
        if name and pkgutil.resolve_name(name) is obj:
            return pkgutil.resolve_name, (name,)
    return None


def _storage(obj: Any) -> tuple[Any, ...] | None:
    """Reduce a storage, the memory that several CPU tensors may share; return None for any other object.

    torch itself pickles small typed storages. torch fails for untyped storages, which new dtypes such as float8 have.
    """
    typed = type(obj).__name__ == "TypedStorage"
    untyped = obj._untyped_storage if typed else obj
    if type(untyped).__name__ != "UntypedStorage" or untyped.device.type != "cpu":
        return None
    if typed:
        return (_typed, (untyped, obj.dtype)) if untyped.nbytes() >= LARGE_BYTES else None
    torch: Any = sys.modules["torch"]
    return _untyped, (pickle.PickleBuffer(torch.empty(0, dtype=torch.uint8, device="cpu").set_(untyped).numpy()),)


def _typed(storage: Any, dtype: Any) -> Any:
    torch = importlib.import_module("torch")
    return torch.storage.TypedStorage(wrap_storage=storage._untyped_storage, dtype=dtype, _internal=True)


def _untyped(memory: Any) -> Any:
    """Return a typed storage of bytes, from which torch can make tensors of new dtypes."""
    torch = importlib.import_module("torch")
    storage = torch.UntypedStorage(0, device="cpu")
    if len(memory):
        storage = torch.frombuffer(memory, dtype=torch.uint8).untyped_storage()
    return torch.storage.TypedStorage(wrap_storage=storage, dtype=torch.uint8, _internal=True)


def _tilelang_object(obj: Any) -> tuple[Any, ...] | None:
    """Reduce an object of tilelang to a call that makes it again, as compiled code cannot be pickled. Return None for
    any other object."""
    if is_compiled(obj):
        names = ("target", "target_host", "execution_backend", "verbose", "pass_configs", "compile_flags")
        options = {name: getattr(obj, name) for name in names}
        tuned = {name: getattr(obj, name) for name in ("latency", "config", "ref_latency")}
        again = importlib.import_module("atune.stages.jit_kernel").compiled_again
        return again, (obj.prim_func, obj.out_idx, getattr(obj, "roles", None), options, tuned)
    kind = type(obj)
    if str(kind.__module__).startswith("tilelang.") and hasattr(kind, "__post_init__"):  # it creates the caches
        fields = {field.name: getattr(obj, field.name) for field in dataclasses.fields(obj)}
        return copyreg.__newobj__, (kind,), fields, None, None, _fill  # type: ignore[attr-defined]
    return None


def _fill(obj: Any, fields: dict[str, Any]) -> None:
    vars(obj).update(fields)
    obj.__post_init__()


def unpack(packed: Packed) -> Any:
    """Return the packed value. The value may be changed, and no other process sees the changes."""
    if packed.path:
        with open(packed.path, "rb") as file:
            whole = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY))
        stream, *buffers = (whole[offset : offset + size] for offset, size in packed.spans)
        return pickle.loads(stream, buffers=buffers)
    return pickle.loads(packed.stream, buffers=map(bytearray, packed.buffers))


def write(packed: Packed, path: str) -> Packed:
    """Write a packed value into the new file `path`, and return a packed value for the file. Raises `OSError`."""
    spans: list[tuple[int, int]] = []
    with open(path, "xb") as file:
        for part in (packed.stream, *packed.buffers):
            file.write(bytes(-file.tell() % mmap.PAGESIZE))
            start = file.tell()
            file.write(part)
            spans.append((start, file.tell() - start))
    return Packed(b"", path=path, spans=tuple(spans))


class LazyCallback:
    """A callback that a worker unpickles at its first call. `func` is the original callback, which workers do not have.

    Every worker gets the whole workload, but only device workers call parts such as the reference. If a callback's
    closure has a CUDA tensor, unpickling the callback would create a CUDA context in compile workers.
    """

    func: Callable[..., Any]

    def __init__(self, function: Callable[..., Any]) -> None:
        self.func = function
        self.__signature__ = _signature(function)
        self.__name__ = getattr(function, "__name__", type(function).__name__)
        self._sent: tuple[bytes, bytes, tuple[Any, ...]] | None = None

    def __call__(self, *values: Any, **named: Any) -> Any:
        return self._function(*values, **named)

    def cache_identity(self) -> bytes:
        """Return what the callback contributes to the workload's fingerprint."""
        return identity(self.func) if self._sent is None else self._sent[0]

    @functools.cached_property
    def _function(self) -> Any:
        return self.func if self._sent is None else pickle.loads(self._sent[1], buffers=self._sent[2])

    def __reduce__(self) -> tuple[Any, ...]:
        if self._sent is None:
            packed = pack(self.func, opened=True)  # the function may hold its own callback
            sent = self.cache_identity(), packed.stream, tuple(buffer.obj for buffer in packed.buffers)
        else:
            sent = self._sent
        *parts, buffers = sent
        return _unopened, (self.__signature__, self.__name__, *parts, tuple(map(pickle.PickleBuffer, buffers)))


def _unopened(signature: inspect.Signature, name: str, identity: bytes, stream: bytes, buffers: Any) -> LazyCallback:
    """Return the lazy callback for a worker, which has no `func`."""
    callback = LazyCallback.__new__(LazyCallback)
    callback.__signature__, callback.__name__ = signature, name
    callback._sent = identity, stream, tuple(buffers)
    return callback


def _signature(function: Callable[..., Any]) -> inspect.Signature:
    try:
        return inspect.signature(function)
    except (TypeError, ValueError):  # some builtins have no signature
        return inspect.Signature([inspect.Parameter("values", inspect.Parameter.VAR_POSITIONAL)])


# ---- objects that cannot be pickled


def can_be_sent(part: Any) -> bool:
    """Tell whether `part` can be sent to other processes. For example, a function that uses a lock cannot be sent."""
    try:
        pack(part)
    except Exception:  # pickling may raise anything
        return False
    return True


def refusal(parts: Iterable[tuple[str, Any]], error: Exception) -> str:
    """Explain why pickling failed with `error`: name the object in `parts` that cannot be sent, and a remedy.

    For example ``kernel → op → lock cannot be sent to the workers (…)``.
    """
    way, held, passed = [], dict(parts), set[int]()
    while culprit := next(((n, v) for n, v in held.items() if id(v) not in passed and not can_be_sent(v)), None):
        way.append(culprit[0])
        passed.add(id(culprit[1]))
        held = _held(culprit[1])
    return (
        f"{' → '.join(way) or 'it'} cannot be sent to the workers ({message_of(error)}). Make it inside the function "
        "that uses it, because locks, files, CUDA streams and the like belong to a single process"
    )


def _held(obj: Any) -> dict[str, Any]:
    """Return by name the outside variables that a function uses, or the values that an object holds."""
    if inspect.isfunction(obj := function_of(obj)):
        with suppress(ValueError):  # a variable of the closure is not set yet
            used = {n: obj.__globals__[n] for n in global_names(obj.__code__) if n in obj.__globals__}
            return {**inspect.getclosurevars(obj).nonlocals, **used, **vars(obj)}
    if isinstance(obj, functools.partial):
        return {"func": obj.func, **obj.keywords, "args": obj.args}
    if isinstance(obj, MethodType):
        return {"self": obj.__self__}
    if isinstance(obj, list | tuple | set | frozenset):
        return {f"[{place}]": value for place, value in enumerate(obj)}
    return {str(n): value for n, value in (obj if isinstance(obj, Mapping) else getattr(obj, "__dict__", {})).items()}
