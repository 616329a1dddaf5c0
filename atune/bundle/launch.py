"""Loading and launching a library, which workers and bundles do alike, and a bundle's requirements on the machine.

CUDA libraries are loaded by ``apache-tvm-ffi`` and tilelang's runtime, but without tilelang.
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
"""Types of arguments for parameters that are no tensors."""
_OPERATORS: Mapping[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.FloorDiv: operator.floordiv,
}  # fmt: skip
X86_FEATURES = r"pni|s?sse|avx|amx|fma|f16c|bmi|abm|popcnt|v?aes|sha|gfni|v?pclmul|movbe|adx|xop|tbm|rdrand|rdseed"
"""Beginnings of those flags in /proc/cpuinfo that name instructions for ``-march=native``."""
TVM_RUNTIME = "libtvm_runtime.so"
"""tilelang's runtime. It has tvm_ffi load machine code, launches kernels, and needs the ``libstub_*.so`` next to it."""
STUBS = "libstub_*.so"
"""Libraries that find CUDA's, and other vendors', when they are first called."""
TENSORMAP = "libatune_tensormap.so"
"""``tensormap.c``: the one function that host code calls, and that tilelang's runtime lacks."""
PROVIDED = frozenset({"__tvm_set_device", "__tvm_tensormap_create_tiled"})
"""Functions that a library of a bundle may call by name."""
REGISTERED = "ffi.Module.load_from_bytes.cuda"
"""The function by which the runtime tells tvm_ffi that it is there."""
_loading = threading.Lock()
CallPlan = Callable[[Sequence[Any]], Any]
"""Calls a kernel with arguments of one signature, and returns what the call returns."""
Wrong = Callable[[str], Exception]
"""Makes the error for a call's arguments."""
Launch = Callable[..., None]
"""Launches a kernel with all of its parameters."""
COUNTABLE = 2**31 - 1
"""Most elements from a tensor's first to its last one, unless the code was compiled for more: sizes have 32 bits."""
_LARGEST = {"float16": 65504.0, "bfloat16": 3.39e38, "float32": 3.4028235e38}
"""About the largest numbers; larger ones would become infinite."""
C_TYPES = {"float32": ctypes.c_float, "float64": ctypes.c_double, "int64": ctypes.c_int64, "uint64": ctypes.c_uint64}
"""C types of parameters that are numbers. Smaller integers travel as 32 bits."""


class Libraries:
    """The libraries of the bundle in `folder`, `files` by their digests: what is loaded is what was compared.

    A file may be another one since the bundle was read. Each is read once more, compared, and loaded from memory.
    """

    def __init__(self, folder: Path, files: Mapping[str, str]) -> None:
        self.folder, self.files = folder, files

    def path(self, name: str) -> str:
        """Return the path of a file's content in memory, which stays. Raises `DamagedBundle`."""
        if (digest := self.files[name]) not in _HELD:
            data = checked(self.folder, name, self.files)
            number = os.memfd_create(Path(name).name)
            with open(number, "wb", closefd=False) as file:
                file.write(data)
            _HELD[digest] = f"/proc/self/fd/{number}"  # never closed: a library is known by its path
        return _HELD[digest]

    def module(self, name: str) -> Any:
        """Return a library as a module of tvm_ffi, which goes by the end of a file's name."""
        import tvm_ffi

        with tempfile.TemporaryDirectory() as folder:
            os.symlink(self.path(name), link := f"{folder}/kernel.so")
            return tvm_ffi.load_module(link)


_HELD: dict[str, str] = {}
"""Paths of files in memory, by digest."""


def gate(params: Sequence[Any], wrong: Wrong = ValueError, outputs: Container[int] = ()) -> Callable[..., None]:
    """Return what refuses all of a kernel's arguments, in a sequence, if native code would take one for another.

    Native code sees a tensor's memory, sizes of 32 bits, and numbers of C types.
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
    """Raise `wrong` if a tensor is more than its memory, or less, or spans more than `most` elements of it."""
    import torch

    if not isinstance(tensor, torch.Tensor):
        return  # a check of types says more
    if tensor.is_neg() or tensor.is_conj():
        raise wrong(f"{what} is a lazily negated or conjugated view: give tensor.resolve_neg().resolve_conj()")
    if type(tensor).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__ or tensor.layout is not torch.strided:
        raise wrong(f"{what} is a {type(tensor).__name__} of layout {tensor.layout}: give a plain, dense tensor")
    if is_output and any(stride == 0 and n > 1 for n, stride in zip(tensor.shape, tensor.stride(), strict=True)):
        raise wrong(f"{what} is an output, and an expanded tensor: give one whose elements do not share memory")
    if max(tensor.numel(), extent(tensor.shape, tensor.stride())) > most:
        raise wrong(f"{what} spans more than {most} elements, the most that the kernel can count")


def extent(shape: Sequence[int], strides: Sequence[int]) -> int:
    """Return how many elements lie between a tensor's first and last one, both included."""
    if 0 in shape:
        return 0
    return 1 + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))


def _fits(value: Any, dtype: str) -> bool:
    """Tell whether a number keeps its value in the C type of `dtype`, or a float its size. A tensor does."""
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
    """Return what a call of `kernel` with arguments like these does. `sizes`: values of its symbolic dimensions.

    Raises `DamagedBundle` if the library does not load, and `WrongArguments` for outputs of unknown size.
    """
    import torch

    library = f"{kernel.library}.so"
    try:
        if target == "c":
            if unknown := [what for what in kernel.calls if isinstance(what, str) and what not in sizes]:
                raise WrongArguments(f"the arguments do not tell {unknown[0]!r}: give every parameter")
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
    gradients = any(getattr(one, "requires_grad", False) for one in arguments)
    moved, n = order != sorted(order), len(arguments)
    check, numbers = gate(kernel.params, WrongArguments, kernel.outputs), any(p.shape is None for p in kernel.params)
    given_now = [*arguments, *[make() for make in makers]]
    check([given_now[i] for i in order])  # later calls differ in numbers alone

    def run(arguments: Sequence[Any]) -> Any:
        if gradients and torch.is_grad_enabled():
            raise RuntimeError("an input requires grad, and a bundle has no backward: call it under torch.no_grad()")
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
    """Return what allocates each output."""
    import torch

    here = next((one.device for one in inputs if one.__class__ not in NUMBER_TYPES), None)
    device = here or torch.device("cpu" if kernel.calls else "cuda")  # without an index: torch's current one
    if unknown := [kernel.params[i].dtype for i in kernel.outputs if torch_dtype(kernel.params[i].dtype) is None]:
        raise WrongArguments(f"torch has no dtype {unknown[0]}, which an output has: give every parameter")
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
    """Return the C function of `kernel`, which has `symbol`, `params` and `calls`, as a function of its parameters.

    `sizes_of`: returns a call's symbolic dimensions. Raises `OSError` and `AttributeError` if it does not load.
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
    """Return the strides of a contiguous tensor."""
    return tuple(math.prod(max(size, 1) for size in shape[i + 1 :]) for i in range(len(shape)))


_DTYPES: dict[str, Any] = {}
"""Known answers of `torch_dtype`. `torch.compile` warns of `functools.cache`."""


def torch_dtype(name: str) -> Any:
    """Return torch's dtype for TileLang's `name`; None if torch has none."""
    if name not in _DTYPES:
        import torch

        names = {"float8_e4m3": "float8_e4m3fn", "uint1": "bool"}
        found = vars(torch).get(names.get(name, name))  # a stranger's manifest may name anything of torch
        _DTYPES[name] = found if isinstance(found, torch.dtype) else None
    return _DTYPES[name]


def output_layout(
    kernel: BundledKernel, position: int, sizes: Mapping[str, int]
) -> tuple[Sequence[int], Sequence[int]]:
    """Return the shape and strides of the output `position`. Raises `WrongArguments` if the inputs do not tell."""
    param = kernel.params[position]
    if not param.shape:
        raise WrongArguments(f"output {position} has no dimensions and cannot be allocated: give every parameter")
    declared, rank = [*param.shape, *(param.strides or ())], len(param.shape)
    found = [value for size in declared if (value := size_of(size, sizes)) is not None and 0 <= value < 2**63]
    if len(found) < len(declared):
        unknown = next((size for size in declared if size_of(size, sizes) is None), declared)
        raise WrongArguments(f"output {position}: the inputs do not tell its {unknown!r}: give every parameter")
    return found[:rank], contiguous(found[:rank]) if param.strides is None else found[rank:]


def size_of(size: int | str, sizes: Mapping[str, int]) -> int | None:
    """Return the value of a number, of a text in `sizes`, or of sums and products of these; None if it is unknown."""

    def of(node: ast.expr) -> int:
        match node:
            case ast.Constant(value=int(number)):
                return number
            case ast.Name(id=name):
                return sizes[name]
            case ast.BinOp(left=left, op=op, right=right):
                return _OPERATORS[type(op)](of(left), of(right))  # also of torch's symbolic sizes
        raise KeyError(size)

    if not isinstance(size, str):
        return size
    try:
        return sizes[size] if size in sizes else of(ast.parse(size, mode="eval").body)
    except (KeyError, SyntaxError, ValueError, ZeroDivisionError, RecursionError, MemoryError):
        return None


def disagreement(sizes: Mapping[str, int]) -> str:
    """Return which sum or product in `sizes` has another value than its names there give it; empty for none."""
    names = {name: value for name, value in sizes.items() if name.isidentifier()}
    right = {text: size_of(text, names) for text in sizes if text not in names}
    wrong = [text for text, value in right.items() if value not in (None, sizes[text])]
    return f"{wrong[0]} is {sizes[wrong[0]]}, and must be {right[wrong[0]]}" if wrong else ""


def this_cpu() -> dict[str, Any]:
    """Return this machine's architecture, its CPU's name, and the sets of instructions that compilers take from it."""
    try:
        info = Path("/proc/cpuinfo").read_text()
    except OSError:
        info = ""
    found = dict(re.findall(r"^(model name|flags|Features)\s*: (.*)$", info, re.MULTILINE))
    features = [flag for flag in found.get("flags", "").split() if re.match(X86_FEATURES, flag)]
    features = features or found.get("Features", "").split()
    return {"machine": platform.machine(), "name": found.get("model name", "CPU"), "features": sorted(features)}


def check_requirements(plain: Mapping[str, Any]) -> None:
    """Raise `WrongMachine` if the bundle with the manifest `plain` cannot run here."""
    here = this_cpu()
    if plain["cpu"]["machine"] != here["machine"]:
        raise WrongMachine(f"the bundle is for {plain['cpu']['machine']}, and this machine is {here['machine']}")
    if lacking := sorted(set(plain["cpu"]["features"]) - set(here["features"])):
        raise WrongMachine(
            f"the bundle was compiled on {plain['cpu']['name']}, and this CPU, {here['name']}, lacks "
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
            raise WrongMachine(f"the bundle is for CUDA devices of {plain['arch']}, and torch finds no CUDA device")


def check_device(arch: str, device: Any) -> None:
    """Raise `WrongMachine` unless the CUDA device `device` is of the model that `arch` names, such as ``sm_90a``."""
    import torch

    major, minor = torch.cuda.get_device_capability(device)
    if arch.rstrip("af") != f"sm_{major}{minor}":
        name = torch.cuda.get_device_name(device)
        raise WrongMachine(f"the bundle is for {arch}, and {device} is {name}, sm_{major}{minor}: tune on it")


def prepare(libraries: Libraries) -> None:
    """Load what the libraries of a bundle need, once in a process. Raises `OSError`."""
    import tvm_ffi

    with _loading:
        if tvm_ffi.get_global_func(REGISTERED, allow_missing=True) is not None:
            return
        if (folder := runtime_folder()) is not None:
            paths = [str(one) for one in (*sorted(folder.glob(STUBS)), folder / TVM_RUNTIME)]
        else:
            stubs = sorted(name for name in libraries.files if fnmatch(name, f"{RUNTIME}/{STUBS}"))
            paths = [libraries.path(name) for name in (*stubs, f"{RUNTIME}/{TVM_RUNTIME}")]
        for path in paths:
            ctypes.CDLL(path, ctypes.RTLD_GLOBAL)  # for all libraries to see: a bundle's names none of them


def cuda_function(libraries: Libraries, name: str, symbol: str) -> Callable[..., Any]:
    """Return the function `symbol` of the library `name`. It launches on torch's current stream.

    Raises `OSError`, `RuntimeError` and `AttributeError` if it does not load.
    """
    prepare(libraries)
    library = libraries.module(name)
    library.import_module(tensormap(libraries))  # not registered: tilelang registers its own
    found: Callable[..., Any] = library[symbol]
    return found


def tensormap(libraries: Libraries) -> Any:
    """Return the module of the library `TENSORMAP`, which calls the driver's function."""
    try:
        encode = ctypes.cast(ctypes.CDLL("libcuda.so.1").cuTensorMapEncodeTiled, ctypes.c_void_p).value
    except (OSError, AttributeError):
        encode = None  # a call then says so
    name = f"{RUNTIME}/{TENSORMAP}"
    ctypes.c_void_p.in_dll(ctypes.CDLL(libraries.path(name)), "atune_encode").value = encode
    return libraries.module(name)


def runtime_folder() -> Path | None:
    """Return the folder of tilelang's own runtime; None if tilelang is not installed. Imports nothing.

    If tilelang is installed, bundles load its copy: two copies in one process would end it, because each registers the
    same functions with tvm_ffi. A later ``import tilelang`` finds that copy loaded.
    """
    spec = importlib.util.find_spec("tilelang")
    for place in (spec.submodule_search_locations or ()) if spec is not None else ():
        if (Path(place) / "lib" / TVM_RUNTIME).exists():
            return Path(place) / "lib"
    return None
