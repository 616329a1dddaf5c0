"""Code that loads and launches libraries for workers and bundles, and checks whether a machine can run a bundle.

CUDA libraries are loaded by ``apache-tvm-ffi`` and tilelang's runtime, so that tilelang itself is not needed.
"""

from __future__ import annotations

import ast
import ctypes
import functools
import importlib.util
import math
import operator
import os
import platform
import re
import tempfile
import threading
from collections.abc import Callable, Container, Mapping, Sequence
from fnmatch import fnmatch
from importlib import metadata
from pathlib import Path
from typing import Any

from atune.bundle.manifest import RUNTIME, BundledKernel, DamagedBundle, WrongArguments, WrongMachine, checked

NUMBER_TYPES = frozenset({int, float, bool})
"""Types of the arguments that a call may pass for numbers."""
_OPERATORS: Mapping[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.FloorDiv: operator.floordiv,
}  # fmt: skip
X86_FEATURES = r"pni|s?sse|avx|amx|fma|f16c|bmi|abm|popcnt|v?aes|sha|gfni|v?pclmul|movbe|adx|xop|tbm|rdrand|rdseed"
"""Beginnings of flags in /proc/cpuinfo that name the instruction sets used by ``-march=native``."""
TVM_RUNTIME = "libtvm_runtime.so"
"""tilelang's runtime, with which tvm_ffi loads device code and launches kernels. Its folder must also have `STUBS`."""
STUBS = "libstub_*.so"
"""Libraries that find and load the libraries of CUDA, or of another vendor, when a program first calls them."""
TENSORMAP = "libatune_tensormap.so"
"""The library of ``tensormap.c``. Host code calls the library's function, which tilelang's runtime lacks."""
PROVIDED = frozenset({"__tvm_set_device", "__tvm_tensormap_create_tiled"})
"""Names of the functions that a bundle's library may call."""
REGISTERED = "ffi.Module.load_from_bytes.cuda"
"""Name of a function that tilelang's runtime registers. If tvm_ffi has this function, the runtime is already loaded."""
_loading = threading.Lock()
CallPlan = Callable[[Sequence[Any]], Any]
"""A function that calls a kernel with arguments of a fixed signature, and returns what the call of a bundle returns."""
Wrong = Callable[[str], Exception]
"""A function that makes the error for wrong arguments of a call."""
Launch = Callable[..., None]
"""A function that launches a kernel with all of the kernel's parameters."""
COUNTABLE = 2**31 - 1
"""Largest number of elements that a tensor may span, as sizes are 32-bit unless the code was compiled for 64 bits."""
_LARGEST = {"float16": 65504.0, "bfloat16": 3.39e38, "float32": 3.4028235e38}
"""The largest number that each type can hold, approximately. Larger numbers would become infinite."""
C_TYPES = {"float32": ctypes.c_float, "float64": ctypes.c_double, "int64": ctypes.c_int64, "uint64": ctypes.c_uint64}
"""C types of the parameters that are numbers. Integers of other types are passed with 32 bits."""


class Libraries:
    """The libraries of the bundle in `folder`. `files`: the digest of each file, by the file's name.

    A file may change after the bundle was read. So each file is read again, compared, and then loaded from memory.
    """

    def __init__(self, folder: Path, files: Mapping[str, str]) -> None:
        self.folder, self.files = folder, files

    def path(self, name: str) -> str:
        """Return the path of a copy of the file in memory. The copy is never freed. Raises `DamagedBundle`."""
        if (digest := self.files[name]) not in _HELD:
            data = checked(self.folder, name, self.files)
            number = os.memfd_create(Path(name).name)
            with open(number, "wb", closefd=False) as file:
                file.write(data)
            _HELD[digest] = f"/proc/self/fd/{number}"  # never closed, because libraries are identified by their paths
        return _HELD[digest]

    def module(self, name: str) -> Any:
        """Return a library as a module of tvm_ffi, which requires that the file's name ends with ``.so``."""
        import tvm_ffi

        with tempfile.TemporaryDirectory() as folder:
            os.symlink(self.path(name), link := f"{folder}/kernel.so")
            return tvm_ffi.load_module(link)


_HELD: dict[str, str] = {}


def gate(params: Sequence[Any], wrong: Wrong = ValueError, outputs: Container[int] = ()) -> Callable[..., None]:
    """Return a function that checks the arguments of a kernel, and raises if native code would misread an argument.

    The arguments are a sequence. Native code knows only a tensor's memory, sizes of 32 bits, and numbers of C types.
    """
    import torch

    numbers = [(i, param.dtype) for i, param in enumerate(params) if param.shape is None]
    fixed = [param.shape if param.shape and all(isinstance(n, int) for n in param.shape) else () for param in params]
    tensors = [(i, max(COUNTABLE, math.prod(fixed[i]))) for i, param in enumerate(params) if param.shape is not None]
    plain = {torch.Tensor, torch.nn.Parameter}

    def check(arguments: Sequence[Any]) -> None:
        for i, most in tensors:
            t = arguments[i]
            if t.__class__ not in plain or t.is_neg() or t.numel() > most or not t.is_contiguous():
                refuse(f"parameter {i}", t, wrong, most, i in outputs)
        for i, dtype in numbers:
            if not _fits(arguments[i], dtype):
                raise wrong(f"parameter {i}: the kernel takes {dtype}, which cannot hold {arguments[i]!r}")

    return check


def refuse(what: str, tensor: Any, wrong: Wrong = ValueError, most: int = COUNTABLE, is_output: bool = False) -> None:
    """Raise `wrong` if native code would misread a tensor's memory, or the memory spans more than `most` elements."""
    import torch

    if not isinstance(tensor, torch.Tensor):
        return  # the check of types has a better message
    if tensor.is_neg() or tensor.is_conj():
        raise wrong(f"{what} is a lazily negated or conjugated view: pass tensor.resolve_neg().resolve_conj()")
    if type(tensor).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__ or tensor.layout is not torch.strided:
        raise wrong(f"{what} is a {type(tensor).__name__} of layout {tensor.layout}: pass a plain, dense tensor")
    if is_output and any(stride == 0 and n > 1 for n, stride in zip(tensor.shape, tensor.stride(), strict=True)):
        raise wrong(f"{what} is an expanded output tensor: pass a tensor whose elements do not share memory")
    if max(tensor.numel(), extent(tensor.shape, tensor.stride())) > most:
        raise wrong(f"{what} spans more than {most} elements, which the kernel cannot count")


def extent(shape: Sequence[int], strides: Sequence[int]) -> int:
    """Return how many elements a tensor spans in memory, from its first element to its last."""
    if 0 in shape:
        return 0
    return 1 + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))


def _fits(value: Any, dtype: str) -> bool:
    """Tell whether `dtype` can hold `value`. Integers must fit exactly; floats must not overflow. Accepts tensors."""
    exact = getattr(ctypes, f"c_{dtype}", None)
    if hasattr(value, "stride"):
        return True
    try:
        return bool(exact(value).value == value if exact else not _LARGEST.get(dtype, math.inf) < abs(value) < math.inf)
    except TypeError:
        return False


def plan(
    kernel: BundledKernel, libraries: Libraries, target: str, arguments: Sequence[Any], sizes: Mapping[str, int]
) -> CallPlan:
    """Return the plan for calls of `kernel` with arguments like `arguments`. `sizes`: values of symbolic dimensions.

    Raises `DamagedBundle` if the library does not load, and `WrongArguments` if the size of an output is unknown.
    """
    import torch

    library = f"{kernel.library}.so"
    try:
        if target == "c":
            if unknown := [what for what in kernel.calls if isinstance(what, str) and what not in sizes]:
                raise WrongArguments(f"the arguments do not determine {unknown[0]!r}: pass every parameter")
            launch = c_function(libraries.path(library), kernel, lambda _: sizes)
        else:
            launch = cuda_function(libraries, library, kernel.symbol)
    except (OSError, AttributeError, RuntimeError) as error:
        raise DamagedBundle(f"library {kernel.library} does not load: {error}") from error
    whole = len(arguments) == len(kernel.params)
    makers = [] if whole else _makers(kernel, arguments, sizes)
    given = range(len(kernel.params)) if whole else (*kernel.inputs, *kernel.outputs)
    order = [given.index(i) for i in range(len(kernel.params))]
    zero = [given.index(i) for i in kernel.zero if not (whole and i in kernel.outputs)]
    gradients = any(getattr(argument, "requires_grad", False) for argument in arguments)
    moved, n = order != sorted(order), len(arguments)
    check, numbers = gate(kernel.params, WrongArguments, kernel.outputs), any(p.shape is None for p in kernel.params)
    given_now = [*arguments, *[make() for make in makers]]
    check([given_now[i] for i in order])  # later calls differ only in numbers

    def run(arguments: Sequence[Any]) -> Any:
        if gradients and torch.is_grad_enabled():
            raise RuntimeError("an input requires grad, but a bundle has no backward: call it under torch.no_grad()")
        parameters = [*arguments, *[make() for make in makers]]
        ordered = [parameters[i] for i in order] if moved else parameters
        if numbers:
            check(ordered)
        for i in zero:
            parameters[i].zero_()
        launch(*ordered)
        if whole:
            return None
        return parameters[n] if len(makers) == 1 else tuple(parameters[n:])

    return run


def _makers(kernel: BundledKernel, inputs: Sequence[Any], sizes: Mapping[str, int]) -> list[Callable[[], Any]]:
    """Return a function for each output that allocates the output."""
    import torch

    here = next((tensor.device for tensor in inputs if tensor.__class__ not in NUMBER_TYPES), None)
    device = here or torch.device("cpu" if kernel.calls else "cuda")  # without an index: torch's current device
    if unknown := [kernel.params[i].dtype for i in kernel.outputs if torch_dtype(kernel.params[i].dtype) is None]:
        raise WrongArguments(f"torch lacks an output's dtype, {unknown[0]}: pass every parameter")
    return [
        functools.partial(
            torch.empty_strided,
            *output_layout(kernel, i, sizes),
            dtype=torch_dtype(kernel.params[i].dtype),
            device=device,
        )
        for i in kernel.outputs
    ]


def c_function(path: str, kernel: Any, sizes_of: Callable[..., Mapping[str, int]]) -> Launch:
    """Return the C function of `kernel`, which has `symbol`, `params` and `calls`, as a function of all parameters.

    `sizes_of`: returns the symbolic dimensions of a call. Raises `OSError` or `AttributeError` if loading fails.
    """
    function = getattr(ctypes.CDLL(path), f"{kernel.symbol}_kernel")
    symbolic = any(isinstance(what, str) for what in kernel.calls)
    numbers = {i: C_TYPES.get(p.dtype, ctypes.c_int32) for i, p in enumerate(kernel.params) if p.shape is None}
    slots = [(what, ctypes.c_int32 if isinstance(what, str) else numbers.get(what)) for what in kernel.calls]
    function.restype, function.argtypes = ctypes.c_int32, [kind or ctypes.c_void_p for _, kind in slots]

    def launch(*arguments: Any) -> None:
        sizes = sizes_of(arguments) if symbolic else {}
        status = function(*[
            arguments[what].data_ptr() if kind is None else kind(sizes[what] if what in sizes else arguments[what])
            for what, kind in slots
        ])  # fmt: skip
        if status != 0:
            raise RuntimeError(f"{kernel.symbol} returned {status}")

    return launch


def contiguous(shape: Sequence[int]) -> tuple[int, ...]:
    """Return the strides that a contiguous tensor of this shape has."""
    return tuple(math.prod(max(size, 1) for size in shape[i + 1 :]) for i in range(len(shape)))


_DTYPES: dict[str, Any] = {}
"""The cache of `torch_dtype`. `functools.cache` is not used, because `torch.compile` warns about it."""


def torch_dtype(name: str) -> Any:
    """Return torch's dtype for the TileLang dtype `name`; None if torch does not have that dtype."""
    if name not in _DTYPES:
        import torch

        names = {"float8_e4m3": "float8_e4m3fn", "uint1": "bool"}
        dtype = vars(torch).get(names.get(name, name))  # a stranger's manifest may name any object of torch
        _DTYPES[name] = dtype if isinstance(dtype, torch.dtype) else None
    return _DTYPES[name]


def output_layout(
    kernel: BundledKernel, position: int, sizes: Mapping[str, int]
) -> tuple[Sequence[int], Sequence[int]]:
    """Return the shape and strides of output `position`. Raises `WrongArguments` if inputs do not determine them."""
    param = kernel.params[position]
    if not param.shape:
        raise WrongArguments(f"output {position} has no dimensions and cannot be allocated: pass every parameter")
    declared, rank = [*param.shape, *(param.strides or ())], len(param.shape)
    known = [value for size in declared if (value := size_of(size, sizes)) is not None and 0 <= value < 2**63]
    if len(known) < len(declared):
        unknown = next((size for size in declared if size_of(size, sizes) is None), declared)
        raise WrongArguments(f"the inputs do not determine {unknown!r} of output {position}: pass every parameter")
    return known[:rank], contiguous(known[:rank]) if param.strides is None else known[rank:]


def size_of(size: int | str, sizes: Mapping[str, int]) -> int | None:
    """Return the value of `size`: a number, a name in `sizes`, or an expression of names. None if it is unknown."""

    def of(node: ast.expr) -> int:
        match node:
            case ast.Constant(value=int(number)):
                return number
            case ast.Name(id=name):
                return sizes[name]
            case ast.BinOp(left=left, op=op, right=right):
                return _OPERATORS[type(op)](of(left), of(right))  # also for torch's symbolic sizes
        raise KeyError(size)

    if not isinstance(size, str):
        return size
    try:
        return sizes[size] if size in sizes else of(ast.parse(size, mode="eval").body)
    except (KeyError, SyntaxError, ValueError, ZeroDivisionError, RecursionError, MemoryError):
        return None


def disagreement(sizes: Mapping[str, int]) -> str:
    """Return a message if a sum or product in `sizes` contradicts the values of its names; otherwise an empty text."""
    names = {name: value for name, value in sizes.items() if name.isidentifier()}
    right = {text: size_of(text, names) for text in sizes if text not in names}
    wrong = [text for text, value in right.items() if value not in (None, sizes[text])]
    return f"{wrong[0]} is {sizes[wrong[0]]}, but must be {right[wrong[0]]}" if wrong else ""


def this_cpu() -> dict[str, Any]:
    """Return this machine's architecture, its CPU's name, and the CPU's instruction sets that compilers may use."""
    try:
        info = Path("/proc/cpuinfo").read_text()
    except OSError:
        info = ""
    fields = dict(re.findall(r"^(model name|flags|Features)\s*: (.*)$", info, re.MULTILINE))
    features = [flag for flag in fields.get("flags", "").split() if re.match(X86_FEATURES, flag)]
    features = features or fields.get("Features", "").split()
    return {"machine": platform.machine(), "name": fields.get("model name", "CPU"), "features": sorted(features)}


def check_requirements(plain: Mapping[str, Any]) -> None:
    """Raise `WrongMachine` if this machine cannot run the bundle with the manifest `plain`."""
    here = this_cpu()
    if plain["cpu"]["machine"] != here["machine"]:
        raise WrongMachine(f"the bundle is for {plain['cpu']['machine']}, but this machine is {here['machine']}")
    if lacking := sorted(set(plain["cpu"]["features"]) - set(here["features"])):
        raise WrongMachine(
            f"the bundle was compiled on {plain['cpu']['name']}, but this CPU, {here['name']}, lacks "
            f"{', '.join(lacking)}: tune on this CPU, or with CompileSettings(flags=('-O3',))"
        )
    for name, wanted in plain["requires"].items():
        try:
            metadata.version(name)
        except (metadata.PackageNotFoundError, ValueError):
            raise WrongMachine(f"the bundle needs {name}: pip install '{name}{wanted}'") from None
    if plain["target"] == "cuda":
        import torch

        if not torch.cuda.is_available():
            raise WrongMachine(f"the bundle is for CUDA devices of {plain['arch']}, but torch finds no CUDA device")


def check_device(arch: str, device: Any) -> None:
    """Raise `WrongMachine` unless `device` is a CUDA device of the architecture `arch`, for example ``sm_90a``."""
    import torch

    major, minor = torch.cuda.get_device_capability(device)
    if arch.rstrip("af") != f"sm_{major}{minor}":
        name = torch.cuda.get_device_name(device)
        raise WrongMachine(f"the bundle is for {arch}, but {device} is {name}, sm_{major}{minor}: tune on this device")


def prepare(libraries: Libraries) -> None:
    """Load the runtime for the libraries of a bundle, unless this process has loaded it. Raises `OSError`."""
    import tvm_ffi

    with _loading:
        if tvm_ffi.get_global_func(REGISTERED, allow_missing=True) is not None:
            return
        if (folder := runtime_folder()) is not None:
            paths = [str(path) for path in (*sorted(folder.glob(STUBS)), folder / TVM_RUNTIME)]
        else:
            stubs = sorted(name for name in libraries.files if fnmatch(name, f"{RUNTIME}/{STUBS}"))
            paths = [libraries.path(name) for name in (*stubs, f"{RUNTIME}/{TVM_RUNTIME}")]
        for path in paths:
            ctypes.CDLL(path, ctypes.RTLD_GLOBAL)  # global, because a bundle's libraries do not link the runtime


def cuda_function(libraries: Libraries, name: str, symbol: str) -> Callable[..., Any]:
    """Return the function `symbol` of the library `name`. The function launches its kernel on torch's current stream.

    Raises `OSError`, `RuntimeError` or `AttributeError` if the library cannot be loaded.
    """
    prepare(libraries)
    library = libraries.module(name)
    library.import_module(tensormap(libraries))  # not registered, because tilelang registers its own
    function: Callable[..., Any] = library[symbol]
    return function


def tensormap(libraries: Libraries) -> Any:
    """Return the library `TENSORMAP` as a module, after telling it the address of the CUDA driver's function."""
    try:
        encode = ctypes.cast(ctypes.CDLL("libcuda.so.1").cuTensorMapEncodeTiled, ctypes.c_void_p).value
    except (OSError, AttributeError):
        encode = None  # a call of the kernel then reports the error
    name = f"{RUNTIME}/{TENSORMAP}"
    ctypes.c_void_p.in_dll(ctypes.CDLL(libraries.path(name)), "atune_encode").value = encode
    return libraries.module(name)


def runtime_folder() -> Path | None:
    """Return the folder of tilelang's own runtime; None if tilelang is not installed. Imports nothing.

    If tilelang is installed, bundles load its copy, because a second copy would register the same functions with
    tvm_ffi, which ends the process. A later ``import tilelang`` finds this copy already loaded.
    """
    spec = importlib.util.find_spec("tilelang")
    for place in (spec.submodule_search_locations or ()) if spec is not None else ():
        if (Path(place) / "lib" / TVM_RUNTIME).exists():
            return Path(place) / "lib"
    return None
