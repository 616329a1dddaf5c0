"""The steps from a candidate to its library, as functions that can be wrapped: lower, compile, link.

Elaborating the kernel, before them, is never wrapped. Nor is generating text between lowering and compiling. The
functions here are tilelang's own way; `Steps()` has them unwrapped. Accelerators wrap some. Core code does not need to
know which.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from atune.model.device import Target
from atune.stages.compile.compilers import link_library, pack_device_code
from atune.stages.session.session import session

NVCC = "tilelang_callback_cuda_compile"
"""tilelang's global function that compiles device code."""


def backend_context() -> Any:
    """Return tilelang's context for the session's target."""
    return context_of(session().target, session().compile.target_host)


@functools.cache
def context_of(target: Target, target_host: str | None) -> Any:
    """Return tilelang's context for a target and a host target."""
    from tilelang.backend.module import create_backend_context

    return create_backend_context(target.tvm(), target_host, "auto")


@dataclass(frozen=True)
class LowerTask:
    """A kernel to lower: its PrimFunc, under its own symbol. `beside`: other inputs that decide the result, as text."""

    function: Any
    symbol: str
    beside: str


@dataclass(frozen=True)
class Modules:
    """A kernel's lowered halves, as tvm's IR modules. `plain`: whether no accelerator had a part in them."""

    host: Any
    device: Any
    plain: bool = True


@dataclass(frozen=True)
class CompileTask:
    """Kernels to compile together. `source`: their device code, as tilelang prints it for all."""

    source: str
    pass_configs: Mapping[str, Any]


@dataclass(frozen=True)
class MachineCode:
    """Result of a `CompileTask`, its compiler, and why this compiler was used."""

    code: bytes
    compiler: str = "nvcc"
    why: str = ""


@dataclass(frozen=True)
class HostHalf:
    """A kernel's half for the host. `module`: its IR, in tvm's JSON."""

    symbol: str
    module: str


@dataclass(frozen=True)
class LinkTask:
    """Halves to link into the library `path`. `device`: the runtime module with the device code. `folder`: for other
    files."""

    hosts: tuple[HostHalf, ...]
    device: Any
    path: str
    folder: str


def lower(job: LowerTask) -> Modules:
    """Lower a kernel. Needs the current target and pass configuration to be set."""
    from tilelang.engine.lower import lower_to_host_device_ir

    host, device, *_ = lower_to_host_device_ir(job.function, backend_context())
    return Modules(host, device)


def compile(job: CompileTask) -> MachineCode:
    """Compile by nvcc, as tilelang calls it. Raises what tilelang raises."""
    import tvm_ffi
    from tilelang import tvm

    configs = tvm.transform.PassContext.current().config
    code = tvm_ffi.get_global_func(NVCC)(job.source, backend_context().target, configs)
    return MachineCode(bytes(code))


def link(job: LinkTask) -> None:
    """Make the library with tvm. Raises `CompileError` with gcc's output."""
    from tilelang import tvm
    from tilelang.engine.lower import host_codegen

    library = host_codegen(merged([load_ir(host.module) for host in job.hosts]), backend_context())
    library.import_module(job.device)
    # tvm asks a compiler function for its `object_format`; without one it writes C for the host, as needed.
    tvm.runtime.Executable(library).export_library(
        job.path, fcompile=link_library, fpack_imports=pack_device_code, workspace_dir=job.folder
    )


@dataclass(frozen=True)
class Steps:
    """One function for each step, and the accelerators that wrap them, ``name@version`` each.

    `plain_builds`: whether none of them wraps compiling or linking.
    """

    lower: Callable[[LowerTask], Modules] = lower
    compile: Callable[[CompileTask], MachineCode] = compile
    link: Callable[[LinkTask], None] = link
    accelerators: tuple[str, ...] = ()
    plain_builds: bool = True


def printed(device: Any) -> str:
    """Return a device module's source, as tilelang prints it."""
    from tilelang.engine.lower import device_codegen_without_compile

    return str(device_codegen_without_compile(device, backend_context()).inspect_source())


def printed_host(host: Any) -> str:
    """Return a host module's source: it contains the grid, the TMA descriptors and the launch's shared memory."""
    from tilelang.engine.lower import host_codegen

    return str(host_codegen(host, backend_context()).inspect_source())


def merged(modules: Sequence[Any]) -> Any:
    """Return one module with the functions of all. Raises `ValueError` if two have a function of the same name."""
    from tilelang import tvm

    functions: dict[Any, Any] = {}
    names: set[str] = set()
    for module in modules:
        for name, function in module.functions.items():
            if name.name_hint in names:
                raise ValueError(f"{name.name_hint} is defined by two members of the group")
            names.add(name.name_hint)
            functions[name] = function
    return tvm.IRModule(functions, attrs=modules[0].attrs)


def load_ir(text: str) -> Any:
    """Return the object that `tvm.ir.save_json` wrote.

    `tvm.ir.load_json` would first convert texts of older releases in Python, which takes ten times as long as loading.
    """
    return _loader()(text)


@functools.cache
def _loader() -> Callable[[str], Any]:
    from tilelang import tvm  # noqa: F401 - registers the function
    from tvm_ffi import get_global_func

    found: Callable[[str], Any] = get_global_func("node.LoadJSON")
    return found
