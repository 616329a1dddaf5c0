"""The compilers that are run here: g++ for target ``c``, gcc and the assembler to link, and what they say."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from typing import Any

from atune.model.settings import CPU_FLAGS

MAX_OUTPUT = 20_000
"""Bytes of compiler output that are kept."""


class CompileError(Exception):
    """A compiler refused the source. Its output is in the message's later lines."""


def first_error(text: str) -> str:
    """Return the most informative line of compiler output: the linker's missing symbol, the first error, the first
    line."""
    lines = text.splitlines()
    for wanted in ("undefined reference", "error: ", "error", "fatal"):
        if found := next((line for line in lines if wanted in line.lower()), None):
            return found
    return lines[0] if lines else ""


class CompilerOutput:
    """Capture the output of this process and its compilers to stdout and stderr, if `wanted`.

    Afterwards it is written there, too. A crash in between only loses the contents of this file.
    """

    def __init__(self, wanted: bool) -> None:
        self._file = tempfile.TemporaryFile() if wanted else None  # noqa: SIM115

    def __enter__(self) -> CompilerOutput:
        if self._file is not None:
            self._flush()
            self._saved = [(fd, os.dup(fd)) for fd in (1, 2)]
            for fd, _ in self._saved:
                os.dup2(self._file.fileno(), fd)
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._flush()
            for fd, saved in self._saved:
                os.dup2(saved, fd)
                os.close(saved)
            sys.stderr.write(self.text())

    def text(self) -> str:
        """Return the tail of the output so far."""
        if self._file is None:
            return ""
        self._flush()
        size = os.fstat(self._file.fileno()).st_size
        data = os.pread(self._file.fileno(), MAX_OUTPUT, max(0, size - MAX_OUTPUT))
        return data.decode(errors="replace").strip()

    @staticmethod
    def _flush() -> None:
        sys.stdout.flush()
        sys.stderr.flush()


def build_c(sources: Sequence[str], flags: Sequence[str] | None, path: str, verbose: bool) -> None:
    """Compile `sources` into the library `path`. Raises `CompileError` with g++'s output."""
    from tilelang.env import TILELANG_TEMPLATE_PATH

    source = path + ".cpp"
    with open(source, "w") as file:
        file.write("\n".join(sources))
    command = [shutil.which("g++") or shutil.which("c++") or "g++", "-std=c++17"]
    command += [*(CPU_FLAGS if flags is None else flags), "-fPIC", "-shared", "-x", "c++", source]
    command += ["-Wl,-z,defs"]  # an undefined symbol fails here, with its member, not the whole library at loading
    command += [f"-I{TILELANG_TEMPLATE_PATH}", "-o", path]
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if done.returncode != 0:
        how = f"exit status {done.returncode}" if done.returncode > 0 else f"killed by signal {-done.returncode}"
        raise CompileError(f"g++ failed, {how}\n{done.stderr.strip()}\n{shlex.join(command)}")
    os.remove(source)
    if verbose:
        print(f"{shlex.join(command)}\n{done.stderr}", file=sys.stderr)


def link_library(output: str, files: Sequence[str], options: Sequence[str] = (), **_: Any) -> None:
    """Make the library of the host's C and of the file that `pack_device_code` wrote. For tvm's `export_library`.

    Raises `CompileError` with gcc's output.
    """
    gcc = shutil.which("gcc") or shutil.which("g++") or "gcc"
    command = [gcc, "-fPIC", "-w", "-shared", "-o", output, *files, *options]
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if done.returncode != 0:
        how = f"exit status {done.returncode}" if done.returncode > 0 else f"killed by signal {-done.returncode}"
        raise CompileError(f"linking failed, {how}\n{done.stderr.strip()}\n{shlex.join(command)}")


def pack_device_code(library: Any, _system_library: bool, prefix: str, folder: str) -> str:
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
