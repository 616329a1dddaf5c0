"""Links host code and device code into a library, with gcc and the assembler."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from typing import Any

from atune.stages.compile.output import CompileError


def link(output: str, files: Sequence[str], options: Sequence[str] = (), **_: Any) -> None:
    """Make the library of the host's C and of the file that `pack` wrote. For tvm's `export_library`.

    Raises `CompileError` with gcc's output.
    """
    gcc = shutil.which("gcc") or shutil.which("g++") or "gcc"
    command = [gcc, "-fPIC", "-w", "-shared", "-o", output, *files, *options]
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if done.returncode != 0:
        how = f"exit status {done.returncode}" if done.returncode > 0 else f"killed by signal {-done.returncode}"
        raise CompileError(f"linking failed, {how}\n{done.stderr.strip()}\n{shlex.join(command)}")


def pack(library: Any, _system_library: bool, prefix: str, folder: str) -> str:
    """Write the device code that `library` imports for the assembler, and return the file. For tvm's `export_library`.

    tvm itself writes a C array of the same bytes. Printing it takes part of a second, and gcc needs longer to parse it
    than for everything else.
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
