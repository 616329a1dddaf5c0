"""A group's library of the host's code and the device's, made by gcc."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from typing import Any

from atune.stages.accelerators import host_code
from atune.stages.compile.lowering import Blob
from atune.stages.session.session import session


class CompileError(Exception):
    """A compiler refused the source. Its words are the message's later lines."""


def host_files(
    blobs: Sequence[Blob], codes: Sequence[tuple[str, host_code.HostCode]], folder: str, exact: bool
) -> list[str]:
    """Write the host's code; return the files, and options, for `link`. A kernel that stands alone and is to be as
    tilelang makes it, or whose template is no C, has its own function.
    """
    if exact and len(blobs) == 1:
        return _plain(blobs[0], folder)
    try:
        return _from_tables(codes, folder)
    except CompileError:
        if len(blobs) > 1:
            raise
        return _plain(blobs[0], folder)


def _plain(blob: Blob, folder: str) -> list[str]:
    """Write the host's code of one kernel as tilelang prints it."""
    with open(os.path.join(folder, "host.c"), "w", encoding="utf-8") as file:
        file.write(blob.host_source)
    return [file.name, *_include_options()]


def _from_tables(codes: Sequence[tuple[str, host_code.HostCode]], folder: str) -> list[str]:
    """Write the host's code of `codes`: their tables, beside the templates that they share."""
    with open(os.path.join(folder, "host.c"), "w", encoding="utf-8") as file:
        file.write(host_code.tables(codes))
    names = dict.fromkeys(code.template for _, code in codes)
    return [file.name, *(host_code.compiled(name, session().run_dir, _compile_c) for name in names)]


def _include_options() -> list[str]:
    from tvm.libinfo import find_include_path

    return [f"-I{folder}" for folder in find_include_path()]


def _compile_c(arguments: Sequence[str]) -> None:
    _run_gcc([*arguments, *_include_options()])


def link(output: str, files: Sequence[str], options: Sequence[str] = (), **_: Any) -> None:
    """Make the library of the host's C and of what `pack` wrote."""
    _run_gcc(["-shared", "-o", output, *files, *options])


def _run_gcc(arguments: Sequence[str]) -> None:
    command = [shutil.which("gcc") or shutil.which("g++") or "gcc", "-fPIC", "-w", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if done.returncode != 0:
        what = "linking" if "-shared" in arguments else "compiling the host's code"
        raise CompileError(
            f"{what} failed, exit status {done.returncode}\n{done.stderr.strip()}\n{shlex.join(command)}"
        )


def pack(library: Any, _system_library: bool, prefix: str, folder: str) -> str:
    """Write what `library` imports, the device code, for the assembler; return the file. For tvm's `export_library`.

    tvm by itself writes a C array of the same bytes: to print it takes a part of a second, and gcc takes longer to
    parse it than for all the rest.
    """
    import tvm_ffi

    name, file = f"{prefix}__tvm_ffi__library_bin", os.path.join(folder, f"{prefix}devc.s")
    packed = tvm_ffi.get_global_func("runtime.ModulePackImportsToTensor")(library).numpy().tobytes()
    with open(f"{file}.bin", "wb") as binary:
        binary.write(packed)
    with open(file, "w") as assembly:
        assembly.write(
            f".section .rodata\n.globl {name}\n.type {name}, @object\n.size {name}, {len(packed)}\n"
            f'.balign 16\n{name}:\n.incbin "{file}.bin"\n.section .note.GNU-stack,"",@progbits\n'
        )
    return file
