"""Elaborate kernel functions with tilelang, in workers and in the caller's process. Find the sizes that a call gives,
and the roles of parameters: which parameters are outputs, and which inputs a kernel may write into."""

from __future__ import annotations

import contextlib
import copy
import inspect
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from atune.bundle.launch import size_of
from atune.errors import SpaceError, UsageError, WorkloadError, name_and_message, type_of
from atune.model.artifact import KernelParam, Roles
from atune.model.candidate import DYNAMIC, RESERVED, Config, as_written, normalise
from atune.stages import tilelang
from atune.stages.arguments import CallInputs as CallInputs
from atune.stages.arguments import DrawnInputs
from atune.stages.tensors import check_arguments
from atune.workload.fingerprint import launch_hints
from atune.workload.source_locations import located

DTYPE, TORCH_DTYPE = "$dtype", "$torch.dtype"
"""Keys of one-entry dicts that encode dtypes of tilelang and torch as data. `DYNAMIC` encodes symbolic variables."""


def elaborate(kernel: Any, arguments: Mapping[str, Any], config: Mapping[str, Any]) -> Any:
    """Call `kernel`, with or without `@tilelang.jit`, and return its PrimFunc.

    `arguments`: arguments of the problem. `config`: a configuration. The kernel gets all values of the configuration as
    the user wrote them, except the values of reserved names. Raises the errors of the kernel and of tilelang,
    `TypeError` if the kernel returns no PrimFunc, and `ValueError` if the kernel cannot have a launch hint.
    """
    given, hints = _split(kernel, arguments, config)
    symbols: dict[str, Any] = {}
    values = {name: _value(value, symbols) for name, value in given.items()}
    get_tir = getattr(kernel, "get_tir", None)
    function = get_tir(**values) if get_tir is not None else kernel(**values)
    if not isinstance(function, tilelang.tvm.tirx.PrimFunc):
        returned = "None" if function is None else type_of(function)
        raise TypeError(f"the kernel returned {returned}, but must return a PrimFunc (T.prim_func)")
    return _hinted(function, hints) if hints else function


def _split(kernel: Any, arguments: Mapping[str, Any], config: Mapping[str, Any]) -> tuple[Config, Config]:
    """Split the arguments and a configuration into arguments of `kernel` and hints for the kernel's launch."""
    given = {**arguments, **{name: as_written(value) for name, value in config.items() if name not in RESERVED}}
    return given, {n: value for n in launch_hints(kernel) if (value := given.pop(n, None)) is not None}


_ANNOTATES = {"occupancy": "tl.min_blocks_per_sm", "num_ctas": "cluster_dims"}
_INSTEAD = {
    "occupancy": "give the kernel a parameter of that name, and annotate it: T.annotate_min_blocks_per_sm(occupancy)",
    "num_ctas": "set the cluster's size in the kernel, T.Kernel(…, cluster_dims=…)",
}
"""tilelang's annotation for each launch hint, and the advice to show if a launch cannot have the hint."""


def _hinted(function: Any, hints: Config) -> Any:
    """Return a PrimFunc whose launches are annotated with `hints`, as if the kernel itself had annotated the launches.
    Raises `ValueError` if the target does not support a hint, or if the kernel already sets the hint."""
    tvm, own, target = tilelang.tvm, set[str](), tilelang.tvm.target.Target.current(allow_none=True)
    arch = "sm_" if target is None else str(target.attrs.get("arch", target.kind.name))

    def annotated(node: Any) -> Any:
        own.update([node.attr_key] if isinstance(node, tvm.tirx.AttrStmt) else node.annotations)
        if getattr(node, "name_hint", "") != "tilelang_root":
            return None
        body, annotations = node.body, dict(node.annotations)
        if "occupancy" in hints:
            body = tvm.tirx.AttrStmt(None, _ANNOTATES["occupancy"], hints["occupancy"], body)
        if hints.get("num_ctas", 1) > 1:
            annotations[_ANNOTATES["num_ctas"]] = [hints["num_ctas"], 1, 1]
        parts = node.iter_vars, node.reads, node.writes, node.name_hint, body, node.init
        return tvm.tirx.SBlock(*parts, node.alloc_buffers, node.match_buffers, annotations)

    body = tvm.tirx.stmt_functor.ir_transform(function.body, None, annotated, ["tirx.SBlock", "tirx.AttrStmt"])
    for name in hints:
        lacks = not arch.startswith("sm_") or (name == "num_ctas" and int(arch[3:].rstrip("af") or 90) < 90)
        if lacks or _ANNOTATES[name] in own:
            why = f"the target {arch} does not support it" if lacks else "the kernel sets it itself"
            raise ValueError(f"{name}: {why}; {_INSTEAD[name]}")
    return function.with_body(body)


def tagged(value: Any) -> Any:
    """Return `value` with dtypes and symbolic variables encoded as data. `elaborate` decodes the data."""
    import torch  # heavy: no module imports it at its top

    if isinstance(value, tilelang.tvm.tirx.Var):
        return {DYNAMIC: str(value.name)}
    if isinstance(value, tilelang.tvm.DataType):
        return {DTYPE: str(value)}
    if isinstance(value, torch.dtype):
        return {TORCH_DTYPE: str(value).removeprefix("torch.")}
    return _of_same_type(value, tagged) if isinstance(value, (list, tuple)) else as_written(value)


def _of_same_type(series: Any, each: Callable[[Any], Any]) -> Any:
    """Apply `each` to all values of a list, tuple or named tuple. Return other series, such as `torch.Size`, as is."""
    kind = type(series)
    if kind in (list, tuple):
        return kind(map(each, series))
    return kind(*map(each, series)) if hasattr(kind, "_fields") else series


def encode(value: Any, where: str) -> Any:
    """Return `value` as plain data, with `tagged` dtypes. Raises a `UsageError` that names `where` for any other
    object."""
    try:
        return normalise(tagged(value), where)
    except SpaceError as error:
        if isinstance(as_written(value), (int, float, str)):  # the type is right, and the error says what is wrong
            raise
        raise UsageError(
            f"{where} is {type_of(value)}; a problem's arguments must be None, bool, int, float, str, a dtype, "
            "a symbolic variable, or lists, tuples and dicts of these. Put other objects in the kernel's closure"
        ) from error


def _value(value: Any, symbols: dict[str, Any]) -> Any:
    """Undo `encode`. Variables with equal names become the same symbolic variable, which is kept in `symbols`."""
    if isinstance(value, (list, tuple)):
        return _of_same_type(value, lambda item: _value(item, symbols))
    if not isinstance(value, dict) or len(value) != 1:
        return as_written(value)  # a dict that the kernel takes as it is
    [(tag, name)] = value.items()
    if tag == DYNAMIC:
        if name not in symbols:
            symbols[name] = tilelang.language.dynamic(name)
        return symbols[name]
    if tag == DTYPE:
        return tilelang.tvm.DataType(name)
    if tag == TORCH_DTYPE:
        import torch  # heavy, as above

        return getattr(torch, name)
    return value


def elaborated(kernel: Any, arguments: Mapping[str, Any], config: Mapping[str, Any], target: Any) -> Any:
    """Elaborate `kernel` for `target`, and return the PrimFunc to lower. Raises the errors of `elaborate`."""
    with target:
        return elaborate(kernel, arguments, config)


frontend_lock = threading.RLock()
"""Lock to hold while using tilelang's builders and registries, which serve only one thread at a time."""


class JitFunction:
    """A kernel under `@tilelang.jit` as the kernel of a workload. Pickling omits kernels that tilelang has compiled.

    An eager kernel takes its dimensions by name instead of tensors, as `workload_signature` declares.
    """

    def __init__(self, jit: Any, signature: inspect.Signature | None = None) -> None:
        self.func = jit.func.orig_func
        self.out_idx, self.pass_configs = jit.out_idx, jit.pass_configs
        self.workload_signature = signature
        self._target = jit.target if isinstance(jit.target, (str, dict, type(None))) else target_text(jit.target)
        self._jit = copy.copy(jit)
        self._jit.func = copy.copy(jit.func)
        self._jit.func.p1_cache = {}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_jit": None}

    def __call__(self, **arguments: Any) -> Any:
        return self.get_tir(**arguments)

    def get_tir(self, **arguments: Any) -> Any:
        if self._jit is None:
            self._jit = tilelang.jit(
                self.func, out_idx=self.out_idx, target=self._target, pass_configs=self.pass_configs
            )
        self._jit.func.p1_cache.clear()  # its keys are equal for 0.0 and -0.0
        return self._jit.get_tir(**arguments)


def is_jit(kernel: Any) -> bool:
    """Tell whether `kernel` was made by `@tilelang.jit`."""
    return all(hasattr(kernel, name) for name in ("get_tir", "func", "signature", "initialize_jit_mode"))


def is_eager(jit: Any, arguments: Mapping[str, Any], configs: Iterable[Config]) -> bool:
    """Tell whether a kernel under `@tilelang.jit` runs when it is called, and make the kernel keep this mode.

    To find the mode, tilelang may have to call the kernel. The call uses the first of `configs` that does not fail. If
    all configurations fail, this function raises `WorkloadError`.
    """
    ordered = sorted(configs, key=lambda c: not c)  # {}, the kernel's own defaults, is the last resort

    def mode(config: Config) -> Any:
        return jit.initialize_jit_mode(**_split(jit, arguments, config)[0])

    return bool(_first_result(ordered, mode, "the kernel cannot be called") == "eager")


def _first_result(configs: Iterable[Config], trace: Callable[[Config], Any], problem: str) -> Any:
    """Return the result of `trace` for the first of `configs` for which `trace` does not fail.

    If `trace` fails for all configurations, raise `WorkloadError` with `problem` and the place of the first error.
    """
    first: Exception | None = None
    for config in configs:
        try:
            with frontend_lock:
                return trace(config)
        except Exception as error:  # perhaps only this configuration is wrong
            first = first or error
    message = problem if first is None else located(f"{problem}: {name_and_message(first)}", first)
    raise WorkloadError(message) from first


def tensor_names(jit: Any) -> tuple[str, ...]:
    """Return the names of an eager kernel's run-time parameters, tensors and scalars, in order."""
    names = getattr(jit.func, "tensor_args", None) or {}
    return tuple(name for name in jit.signature.parameters if name in names)


def jit_function(jit: Any, eager: bool) -> JitFunction:
    """Return `jit` as the kernel of a workload."""
    if not eager:
        return JitFunction(jit)
    names = tensor_names(jit)
    kept = [p for n, p in jit.signature.parameters.items() if n not in names and p.kind is not p.VAR_KEYWORD]
    kept = [p.replace(kind=p.KEYWORD_ONLY) for p in kept]
    free = "_".join(["dimensions", *jit.signature.parameters])  # longer than any parameter's name, so it is free
    dimensions = inspect.Parameter(free, inspect.Parameter.VAR_KEYWORD)
    return JitFunction(jit, inspect.Signature([*kept, dimensions]))


def eager_dimensions(
    jit: Any, tensors: Mapping[str, Any], arguments: Mapping[str, Any], configs: Iterable[Config]
) -> dict[str, Any]:
    """Read the `T.const` dimensions of an eager kernel from `tensors`, and return their sizes by name.

    The kernel is traced with the first of `configs` that works. Raises `WorkloadError` if no configuration works, and
    `UsageError` if neither `tensors` nor `arguments` determine a dimension.
    """

    def traced(config: Config) -> dict[str, Any]:
        (key, sizes), _ = jit.func.parse_args(**_split(jit, {**tensors, **arguments}, config)[0])
        matcher = getattr(jit.func.p1_cache.get(key), "matcher", None) or ()
        return {str(getattr(k, "orig_name", k)): v for k, v in zip(matcher, sizes or (), strict=False)}

    try:
        dimensions: dict[str, Any] = _first_result(configs, traced, "no configuration of the kernel can be traced")
    except WorkloadError as error:
        name = jit.func.orig_func.__name__
        if odd := next((n for n in tensors if not hasattr(tensors[n], "shape")), ""):
            raise UsageError(
                f"{jit.func.orig_func.__name__}: {odd} must be a tensor, got {type_of(tensors[odd])}"
            ) from error
        template = next(reversed(jit.func.p1_cache.values()), None)
        known = {*tensors, *arguments}
        lacks = [n for of, _, _, n in (getattr(template, "matcher", None) or {}).values() if not {of, n} & known]
        if not lacks:
            raise
        options = " ".join(f"--arg {n}=…" for n in lacks)
        sizes = f"{', '.join(f'{n}=…' for n in lacks)} ({options})"
        raise UsageError(f"{name}: give the tensors of a call, or its sizes: {sizes}") from error
    return dimensions


def first_function(kernel: Any, arguments: Mapping[str, Any], configs: Iterable[Config]) -> Any:
    """Return the PrimFunc of the first of `configs` that can be elaborated; None if all configurations fail."""
    with contextlib.suppress(WorkloadError):  # the engine records the error, as the candidate's failure
        return _first_result(configs, lambda config: elaborate(kernel, arguments, config), "nothing elaborates")
    return None


def parameters_of(kernel: Any, arguments: Mapping[str, Any], configs: Iterable[Config]) -> tuple[KernelParam, ...]:
    """Return the kernel's parameters; empty if no configuration can be elaborated."""
    function = first_function(kernel, arguments, configs)
    return () if function is None else kernel_parameters(function)


def misfit(params: Sequence[KernelParam], tensors: Sequence[Any]) -> Exception | None:
    """Return the reason why a kernel cannot take `tensors` as its first arguments; None if the kernel can take them.

    Some of `tensors` may be None. Dtypes, dimensions and strides must fit. Devices may differ from the run's devices.
    """
    for position, (param, tensor) in enumerate(zip(params, tensors, strict=False)):
        home = getattr(getattr(tensor, "device", None), "type", None)
        try:
            check_arguments([param], [tensor], home, position)
        except (TypeError, ValueError) as error:
            if tensor is not None:
                return error
    return None


def kernel_parameters(function: Any) -> tuple[KernelParam, ...]:
    """Return the parameters of a PrimFunc. A tensor without dimensions counts as a number, as in tilelang."""
    params = []
    for variable in function.params:
        buffer = function.buffer_map.get(variable)
        if buffer is None or not buffer.shape:
            params.append(KernelParam(str((buffer or variable).dtype), None))
        else:
            strides = None if _is_compact(buffer) else _sizes(buffer.strides)
            params.append(KernelParam(str(buffer.dtype), _sizes(buffer.shape), strides))
    return tuple(params)


def _sizes(sizes: Any) -> tuple[int | str, ...]:
    """Return sizes as numbers, or as plain strings if they are symbolic: msgspec cannot encode tvm's own strings."""
    return tuple(int(size) if type(size).__name__ in ("IntImm", "int") else "".join(str(size)) for size in sizes)


def _is_compact(buffer: Any) -> bool:
    """Tell whether a buffer has the strides of a contiguous tensor."""
    analyzer, expected = tilelang.tvm.arith.Analyzer(), 1
    for size, stride in zip(reversed(list(buffer.shape)), reversed(list(buffer.strides)), strict=False):
        if not analyzer.can_prove_equal(stride, expected):
            return False
        expected = size * expected
    return True


def symbols_of(params: Sequence[KernelParam]) -> set[str]:
    """Return the names of symbolic dimensions, but not sums and products of symbolic dimensions."""
    return {d for p in params for d in p.shape or () if isinstance(d, str) and d.isidentifier()}


def bound_symbols(params: Sequence[KernelParam], tensors: Sequence[Any]) -> dict[str, int]:
    """Return the sizes of symbolic dimensions if `tensors` are the kernel's first arguments."""
    symbols: dict[str, int] = {}
    for param, tensor in zip(params, tensors, strict=False):
        for name, size in zip(param.shape or (), getattr(tensor, "shape", ()), strict=False):
            if isinstance(name, str) and name.isidentifier():
                symbols[name] = int(size)
    return symbols


def drawn_inputs(params: Sequence[KernelParam], symbols: Mapping[str, int], scalars: Sequence[Any] = ()) -> DrawnInputs:
    """Return inputs that atune draws at random. Raises `UsageError` if a symbolic size or a scalar value is missing."""
    for size in (d for p in params for d in p.shape or () if isinstance(d, str)):
        if size_of(size, symbols) is None:
            raise UsageError(f"dimension {size!r} is symbolic: pass a size in symbols={{…}}, or pass inputs=")
    if sum(p.shape is None for p in params) > len(scalars) or None in scalars:
        raise UsageError(
            "a parameter of the kernel is a number: call the kernel with the number to tune for, or pass inputs="
        )
    return DrawnInputs(symbols, scalars)


def target_text(target: Any) -> str:
    """Return atune's name for the target of a kernel under `@tilelang.jit`."""
    if target is None:
        return "auto"
    if isinstance(target, str) and not target.startswith("{"):
        return target
    parsed = tilelang.tvm.target.Target(target)
    kind = str(parsed.kind.name)
    return str(parsed.attrs.get("arch", "cuda")) if kind == "cuda" else kind


# ---- roles
# Outputs are the parameters that the caller or the kernel names. If neither names any, they are the parameters that the
# code writes and never reads. A parameter that the code reads may hold data, which must not be overwritten.

READ, WRITE = 1, 2
"""Bits of an access mask, with the same values as in tilelang."""

_MASK_AT = {"tl.region": 1, "tl.access_ptr": 2, "tirx.tvm_access_ptr": 4}
"""Calls that stand for a part of a buffer. Each number is the position of the argument that holds the access mask."""


def roles_of(
    function: Any,
    out_idx: Sequence[int] | None,
    zero: Sequence[int] = (),
    restore: Sequence[int] = (),
    every: bool = False,
) -> Roles:
    """Return the roles of the parameters of a PrimFunc.

    `out_idx`: positions of the outputs that the caller names; None if the function itself may name outputs by returning
    tensors. `zero`: parameters to set to zero, which are outputs unless `out_idx` omits them. `restore`: parameters
    that hold data, which are not outputs unless `out_idx` or the function names them. `every`: whether the user's
    functions get every parameter if nobody names outputs. Raises `WorkloadError` if the parameter at a given position
    is not a tensor.
    """
    params, attrs, done = kernel_parameters(function), function.attrs or {}, accesses(function)
    written = {i for i, access in done.items() if access & WRITE}
    zeroed, kept = set(_positions("zero", params, zero)), _positions("restore", params, restore)
    if out_idx is not None:
        outputs = set(_positions("out_idx", params, out_idx))
    elif "tilelang_out_idx" in attrs:
        outputs = zeroed | {int(i) % len(params) for i in attrs["tilelang_out_idx"]}
    else:
        outputs = zeroed | {i for i in written if done[i] == WRITE and i not in kept}
    unnamed = every and out_idx is None and "tilelang_out_idx" not in attrs
    outs, zeros, writes = (tuple(sorted(each)) for each in (outputs, zeroed, (written | zeroed) - outputs))
    return Roles(outs, zeros, writes, unnamed=unnamed)


def _positions(name: str, params: Sequence[KernelParam], given: Sequence[int]) -> list[int]:
    for i in given:
        if not -len(params) <= i < len(params):
            raise WorkloadError(f"{name} {i}: the kernel has {len(params)} parameters")
        if params[i].shape is None:
            raise WorkloadError(f"{name} {i}: this parameter is a number, but must be a tensor")
    return [i % len(params) for i in given]


def accesses(function: Any) -> dict[int, int]:
    """Return the access mask of each tensor of a PrimFunc, by position: `READ`, `WRITE` or both.

    An atomic operation reads and writes memory. A function that gets an address may also read and write memory.
    """
    tvm = tilelang.tvm
    owners = {b.data: i for i, v in enumerate(function.params) if (b := function.buffer_map.get(v)) is not None}
    masks = dict.fromkeys(owners.values(), 0)

    def note(data: Any, access: int) -> None:
        if data in owners:
            masks[owners[data]] |= access

    def look(node: Any) -> bool:
        if isinstance(node, tvm.tirx.BufferStore):
            note(node.buffer.data, WRITE)
        elif isinstance(node, tvm.tirx.BufferLoad):
            note(node.buffer.data, READ)
        elif isinstance(node, tvm.tirx.Var):
            note(node, READ | WRITE)
        elif isinstance(node, tvm.tirx.Call):
            if "atomic" in str(getattr(node.op, "name", "")):
                for data, access, _ in filter(None, map(_part, node.args)):
                    note(data, READ | WRITE if access & WRITE else 0)
            if (part := _part(node)) is not None:
                data, access, expressions = part
                note(data, access)
                for expression in expressions:
                    visit(expression)
                return False
        return True

    def visit(root: Any) -> None:
        tvm.tirx.stmt_functor.pre_order_visit(root, look)

    visit(function.body)
    return masks


def _part(call: Any) -> tuple[Any, int, Sequence[Any]] | None:
    """Return the memory, the access mask and the index expressions of a call that stands for a part of a buffer.
    Returns None for other calls."""
    name = str(getattr(getattr(call, "op", None), "name", ""))
    if name not in _MASK_AT and name != "tirx.address_of":
        return None
    first, *others = call.args
    mask = getattr(call.args[_MASK_AT[name]], "value", None) if name in _MASK_AT else None
    access = READ | WRITE if mask is None else int(mask)
    if name == "tirx.tvm_access_ptr":
        return others[0], access, others[1:]
    buffer = getattr(first, "buffer", None)
    return None if buffer is None else (buffer.data, access, [*first.indices, *others])
