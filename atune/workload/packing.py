"""Pickles for workers, which keep large tensors and arrays out of the stream, and what cannot be sent.

`pack` returns a short stream and views of the large buffers. `write` puts both into a file, and may run in a thread.
`unpack` maps that file, so that processes share its pages until they write to them.
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
"""Least bytes of a buffer outside the stream."""


class Packed(msgspec.Struct, frozen=True):
    """A pickled value: the stream and its large buffers, by value or in the file `path`.

    `spans`: offset and size in the file, in bytes, of the stream and of each buffer.
    """

    stream: bytes
    buffers: tuple[Any, ...] = ()
    path: str = ""
    spans: tuple[tuple[int, int], ...] = ()

    @property
    def size(self) -> int:
        """Size by value, in bytes."""
        return len(self.stream) + sum(memoryview(buffer).nbytes for buffer in self.buffers)


def pack(value: Any, *, annotations: bool = True) -> Packed:
    """Pickle `value` with its functions and classes. Raises what pickling raises.

    Large tensors and arrays are referenced and not copied. Their contents at the time of writing count. `annotations`:
    functions bring the globals of their annotations, too.
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
        _packer_class()(stream, stays, annotations).dump(value)
        return Packed(stream.getvalue(), tuple(buffers))


@functools.cache
def _packer_class() -> Any:
    """Make the class on first use, because importing cloudpickle takes time and not every program needs it."""
    import cloudpickle

    class Packer(cloudpickle.Pickler):  # type: ignore[misc]
        dispatch_table: ClassVar[Any] = ChainMap({CodeType: _code}, cloudpickle.Pickler.dispatch_table)

        def __init__(self, stream: io.BytesIO, stays: Callable[[pickle.PickleBuffer], bool], annotations: bool) -> None:
            super().__init__(stream, protocol=5, buffer_callback=stays)
            self._annotations = annotations

        def reducer_override(self, one: Any) -> Any:
            if isinstance(one, functools._lru_cache_wrapper) or is_autotuned(one):
                by_value = {"__main__", *cloudpickle.list_registry_pickle_by_value()}
                if one.__module__ in by_value or "<locals>" in one.__qualname__:
                    tuned = is_autotuned(one)
                    return one.by_value() if tuned else (_remembering, (one.__wrapped__, one.cache_parameters()))
            reduced = _storages(one) or _tilelangs(one) or _found_by_name(one) or super().reducer_override(one)
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
    for name in annotation_names(function):
        value = function.__globals__.get(name)
        if value is not None and not isinstance(value, Workload):
            with suppress(Exception):  # pickling may raise anything
                pack(value, annotations=False)
                found[name] = value
    return found


def _fill_annotated(function: Any, filled: tuple[Callable[..., None], Any, dict[str, Any]]) -> None:
    fill, state, annotated = filled
    fill(function, state)
    module = sys.modules.get(function.__module__)  # where Python looks first
    for names in (function.__globals__, {} if module is None else vars(module)):
        names.update({name: value for name, value in annotated.items() if name not in names})


def _remembering(function: Callable[..., Any], parameters: dict[str, Any]) -> Any:
    """Return a function under `functools.lru_cache`, which pickle sends by name alone."""
    return functools.lru_cache(**parameters)(function)


def _found_by_name(one: Any) -> tuple[Any, ...] | None:
    """Reduce what a worker finds by its name alone; None for other objects.

    These are modules of classes of their own, such as torch.backends, torch's operators, and classes of pybind11.
    """
    kind, name = type(one), ""
    with suppress(Exception):
        if isinstance(one, ModuleType) and kind is not ModuleType:
            name = one.__name__
        elif kind.__module__ == "torch._ops":
            name = f"torch.ops.{one}"
        elif kind.__name__ == "pybind11_type":  # its own name may be another than where it stands
            name = next(f"{one.__module__}.{n}" for n, v in vars(sys.modules[one.__module__]).items() if v is one)
        if name and pkgutil.resolve_name(name) is one:
            return pkgutil.resolve_name, (name,)
    return None


def _storages(one: Any) -> tuple[Any, ...] | None:
    """Reduce the memory of a tensor on the CPU, which several tensors may share; None for other objects.

    torch itself sends a small one, unless its dtype is new, such as a float8: then it is untyped, and torch fails.
    """
    typed = type(one).__name__ == "TypedStorage"
    untyped = one._untyped_storage if typed else one
    if type(untyped).__name__ != "UntypedStorage" or untyped.device.type != "cpu":
        return None
    if typed:
        return (_typed, (untyped, one.dtype)) if untyped.nbytes() >= LARGE_BYTES else None
    torch: Any = sys.modules["torch"]
    return _untyped, (pickle.PickleBuffer(torch.empty(0, dtype=torch.uint8, device="cpu").set_(untyped).numpy()),)


def _typed(storage: Any, dtype: Any) -> Any:
    torch = importlib.import_module("torch")
    return torch.storage.TypedStorage(wrap_storage=storage._untyped_storage, dtype=dtype, _internal=True)


def _untyped(memory: Any) -> Any:
    """Return a storage of bytes: torch makes tensors of new dtypes from a typed one."""
    torch = importlib.import_module("torch")
    storage = torch.UntypedStorage(0, device="cpu")
    if len(memory):
        storage = torch.frombuffer(memory, dtype=torch.uint8).untyped_storage()
    return torch.storage.TypedStorage(wrap_storage=storage, dtype=torch.uint8, _internal=True)


def _tilelangs(one: Any) -> tuple[Any, ...] | None:
    """Reduce a kernel of tilelang to what made it, because what it compiled cannot be sent; None for other objects."""
    if is_compiled(one):
        names = ("target", "target_host", "execution_backend", "verbose", "pass_configs", "compile_flags")
        options = {name: getattr(one, name) for name in names}
        tuned = {name: getattr(one, name) for name in ("latency", "config", "ref_latency")}
        again = importlib.import_module("atune.stages.jit_kernel").compiled_again
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
        with open(packed.path, "rb") as file:
            whole = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY))
        stream, *buffers = (whole[offset : offset + size] for offset, size in packed.spans)
        return pickle.loads(stream, buffers=buffers)
    return pickle.loads(packed.stream, buffers=map(bytearray, packed.buffers))


def write(packed: Packed, path: str) -> Packed:
    """Write a packed value into the new file `path`, and return the value as that file. Raises `OSError`."""
    spans: list[tuple[int, int]] = []
    with open(path, "xb") as file:
        for part in (packed.stream, *packed.buffers):
            file.write(bytes(-file.tell() % mmap.PAGESIZE))
            start = file.tell()
            file.write(part)
            spans.append((start, file.tell() - start))
    return Packed(b"", path=path, spans=tuple(spans))


class LazyCallback:
    """A callback that a worker unpickles at its first call. `func` is the original, in the caller's process only.

    Workers get a workload by value. Only device workers unpickle parts such as the reference. A CUDA tensor in a
    callback's closure must not make a CUDA context in every compile worker.
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
        """Return what it counts as in the workload's fingerprint."""
        return identity(self.func) if self._sent is None else self._sent[0]

    @functools.cached_property
    def _function(self) -> Any:
        return self.func if self._sent is None else pickle.loads(self._sent[1], buffers=self._sent[2])

    def __reduce__(self) -> tuple[Any, ...]:
        if self._sent is None:
            packed = pack(self.func)
            sent = self.cache_identity(), packed.stream, tuple(buffer.obj for buffer in packed.buffers)
        else:
            sent = self._sent
        *known, buffers = sent
        return _unopened, (self.__signature__, self.__name__, *known, tuple(map(pickle.PickleBuffer, buffers)))


def _unopened(signature: inspect.Signature, name: str, identity: bytes, stream: bytes, buffers: Any) -> LazyCallback:
    """Return a lazy callback as a worker has it: without `func`."""
    one = LazyCallback.__new__(LazyCallback)
    one.__signature__, one.__name__ = signature, name
    one._sent = identity, stream, tuple(buffers)
    return one


def _signature(function: Callable[..., Any]) -> inspect.Signature:
    try:
        return inspect.signature(function)
    except (TypeError, ValueError):  # some builtins have none
        return inspect.Signature([inspect.Parameter("values", inspect.Parameter.VAR_POSITIONAL)])


# ---- what cannot be sent


def can_be_sent(part: Any) -> bool:
    """Tell whether `part` can be sent to other processes. A closure over a lock, for example, cannot."""
    try:
        pack(part)
    except Exception:  # pickling may raise anything
        return False
    return True


def refusal(parts: Iterable[tuple[str, Any]], error: Exception) -> str:
    """Return which object in `parts` cannot be sent, where it is held, and what to do. `error`: what pickling raised.

    For example ``kernel → op → lock cannot be sent to the workers (…)``.
    """
    way, held, passed = [], dict(parts), set[int]()
    while found := next(((n, one) for n, one in held.items() if id(one) not in passed and not can_be_sent(one)), None):
        way.append(found[0])
        passed.add(id(found[1]))
        held = _held(found[1])
    return (
        f"{' → '.join(way) or 'it'} cannot be sent to the workers ({message_of(error)}). Make it inside the function "
        "that uses it: locks, files, CUDA streams and the like belong to one process"
    )


def _held(one: Any) -> dict[str, Any]:
    """Return what a function uses of its surroundings, or what a container or another object holds, by name."""
    if inspect.isfunction(one := function_of(one)):
        with suppress(ValueError):  # a variable that is not set yet
            used = {n: one.__globals__[n] for n in global_names(one.__code__) if n in one.__globals__}
            return {**inspect.getclosurevars(one).nonlocals, **used, **vars(one)}
    if isinstance(one, functools.partial):
        return {"func": one.func, **one.keywords, "args": one.args}
    if isinstance(one, MethodType):
        return {"self": one.__self__}
    if isinstance(one, list | tuple | set | frozenset):
        return {f"[{place}]": value for place, value in enumerate(one)}
    return {str(n): value for n, value in (one if isinstance(one, Mapping) else getattr(one, "__dict__", {})).items()}
