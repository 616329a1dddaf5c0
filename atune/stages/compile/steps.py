"""The steps from lowered code to a library, as tilelang does them: compile and link."""

from __future__ import annotations

import functools
import os
import shlex
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from atune.model.device import Target
from atune.stages import tilelang
from atune.stages.session.session import session


def backend_context() -> Any:
    """Return tilelang's context for the session's target."""
    return context_of(session().target, session().compile.target_host)


@functools.cache
def context_of(target: Target, target_host: str | None) -> Any:
    """Return tilelang's context for a target and a host target."""
    return tilelang.create_backend_context(target.tvm(), target_host, "auto")


@dataclass(frozen=True)
class MachineCode:
    """Kernels' machine code, its compiler, and why this compiler was used."""

    code: bytes
    compiler: str = "nvcc"
    why: str = ""


Compile = Callable[[str, Mapping[str, Any]], MachineCode]
"""Compiles device code that tilelang printed, with a pass configuration."""


def compile(source: str, pass_configs: Mapping[str, Any]) -> MachineCode:
    """Compile by nvcc, as tilelang calls it. Raises what tilelang raises."""
    configs = tilelang.tvm.transform.PassContext.current().config
    code = tilelang.tvm.get_global_func(tilelang.NVCC)(source, backend_context().target, configs)
    return MachineCode(bytes(code))


class CompileError(Exception):
    """A compiler refused the source. Its output is in the message's later lines."""


def run_compiler(command: Sequence[str], what: str) -> None:
    """Run a compiler. Raises `CompileError`, which begins with `what` and has the compiler's errors, if it fails."""
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if done.returncode != 0:
        how = f"exit status {done.returncode}" if done.returncode > 0 else f"killed by signal {-done.returncode}"
        raise CompileError(f"{what} failed, {how}\n{done.stderr.strip()}\n{shlex.join(command)}")


def link(hosts: Sequence[Any], device: Any, path: str, folder: str) -> None:
    """Make the library `path` with tvm. Raises `CompileError` with gcc's output.

    `hosts`: the kernels' halves for the host. `device`: the runtime module with the device code. `folder`: for other
    files.
    """
    library = tilelang.host_codegen(merged(hosts), backend_context())
    library.import_module(device)
    # tvm asks a compiler function for its `object_format`; without one it writes C for the host, as needed.
    tilelang.tvm.runtime.Executable(library).export_library(
        path, fcompile=_link_library, fpack_imports=_pack_device_code, workspace_dir=folder
    )


def _link_library(output: str, files: Sequence[str], options: Sequence[str] = (), **_: Any) -> None:
    """Make the library of the host's C and of the file that `_pack_device_code` wrote. For tvm's `export_library`.

    Raises `CompileError` with gcc's output.
    """
    gcc = shutil.which("gcc") or shutil.which("g++") or "gcc"
    run_compiler([gcc, "-fPIC", "-w", "-shared", "-o", output, *files, *options], "linking")


def _pack_device_code(library: Any, _system_library: bool, prefix: str, folder: str) -> str:
    """Write the device code that `library` imports for the assembler, and return the file. For tvm's `export_library`.

    tvm itself writes a C array of the same bytes. Printing it takes part of a second, and gcc needs longer to parse it
    than for everything else.
    """
    name, file = f"{prefix}__tvm_ffi__library_bin", os.path.join(folder, f"{prefix}devc.s")
    packed = tilelang.tvm.get_global_func(tilelang.PACK_IMPORTS)(library).numpy().tobytes()
    with open(f"{file}.bin", "wb") as binary:
        binary.write(packed)
    with open(file, "w") as assembly:
        assembly.write(
            f".section .rodata\n.globl {name}\n.type {name}, @object\n.size {name}, {len(packed)}\n"
            f'.balign 16\n{name}:\n.incbin "{file}.bin"\n.section .note.GNU-stack,"",@progbits\n'
        )
    return file


def printed(device: Any) -> str:
    """Return a device module's source, as tilelang prints it."""
    return str(tilelang.device_codegen_without_compile(device, backend_context()).inspect_source())


def merged(modules: Sequence[Any]) -> Any:
    """Return one module with the functions of all. Raises `ValueError` if two have a function of the same name."""
    functions: dict[Any, Any] = {}
    names: set[str] = set()
    for module in modules:
        for name, function in module.functions.items():
            if name.name_hint in names:
                raise ValueError(f"{name.name_hint} is defined by two members of the group")
            names.add(name.name_hint)
            functions[name] = function
    return tilelang.tvm.IRModule(functions, attrs=modules[0].attrs)


def load_ir(text: str) -> Any:
    """Return the object that `tvm.ir.save_json` wrote.

    `tvm.ir.load_json` would first convert texts of older releases in Python, which takes ten times as long as loading.
    """
    return tilelang.tvm.get_global_func(tilelang.LOAD_JSON)(text)
