"""Lowered → Artifact: compile a group of kernels with g++, or as tilelang does, and link them into one library."""

from __future__ import annotations

import functools
import os
import re
import shlex
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from atune.errors import DETAIL_CHARACTERS, MESSAGE_CHARACTERS, cause_in, in_one_line, message_of
from atune.model.artifact import Artifact, Built, Failure, Lowered, source_path
from atune.model.device import Target
from atune.model.settings import CPU_FLAGS
from atune.stages import elf, tilelang
from atune.stages.session import session
from atune.workers.resources import check_compiled


class Blob(msgspec.Struct, frozen=True, kw_only=True):
    """Input of code generation. `host` and `device` are the two lowered modules, as JSON from tvm."""

    symbol: str
    host: str
    device: str
    source: str
    """Source of the device's half."""
    pass_configs: dict[str, Any]
    calls: tuple[int | str, ...] = ()
    """Arguments of the C function for the CPU, as returned by `facts.c_arguments`."""
    flags: tuple[str, ...] | None = None
    """The compiler's flags; None for the default flags of the target."""


@dataclass(frozen=True)
class MachineCode:
    """Machine code of kernels, the compiler that made the code, and why atune chose the compiler (may be empty)."""

    code: bytes
    compiler: str = "nvcc"
    why: str = ""


Compile = Callable[[str, Mapping[str, Any]], MachineCode]
"""Function that takes a device source from tilelang and a pass configuration, and returns machine code."""


def by_nvcc(source: str, pass_configs: Mapping[str, Any]) -> MachineCode:
    """Compile by nvcc, as tilelang does. Raises the errors of tilelang."""
    configs = tilelang.tvm.transform.PassContext.current().config
    code = tilelang.tvm.get_global_func(tilelang.NVCC)(source, backend_context().target, configs)
    return MachineCode(bytes(code))


def backend_context() -> Any:
    return context_of(session().target, session().compile.target_host)


@functools.cache
def context_of(target: Target, target_host: str | None) -> Any:
    """Return tilelang's context for a target and a host target."""
    return tilelang.create_backend_context(target.tvm(), target_host, "auto")


def build(group: Sequence[Lowered], path: str, compile: Compile = by_nvcc) -> list[Artifact]:
    """Compile `group`, whose members share one `merge_key`, into the library `path`. Raises the compilers' errors.
    `compile`: compiles CUDA device code."""
    started = time.perf_counter()
    if not all(lowered.blob for lowered in group):  # an earlier run lowered it, and its library was there a moment ago
        raise LookupError("its library vanished from the artifact store; tune again")
    blobs = [msgspec.msgpack.decode(lowered.blob, type=Blob) for lowered in group]
    part = f"{path}.{os.getpid()}.part"  # so a killed build leaves no file under the final name
    kind = session().target.kind
    if kind == "c":
        _build_c([blob.source for blob in blobs], blobs[0].flags, part)
        machine_code = MachineCode(b"", "g++")
    else:
        machine_code = _build_cuda(blobs, part, compile)
    for blob in blobs:
        with open(source_path(path, blob.symbol), "w", errors="replace") as file:
            file.write(blob.source)
    os.replace(part, path)
    library = Path(path).read_bytes() if kind == "cuda" else b""
    seconds = round(time.perf_counter() - started, 4)
    return [
        Artifact(
            index=lowered.index,
            path=path,
            symbol=blob.symbol,
            params=lowered.params,
            target=kind,
            seconds=seconds,
            calls=blob.calls,
            compiler=machine_code.compiler,
            why=machine_code.why,
            store_key=lowered.store_key,
            source_key=lowered.source_key,
            roles=lowered.roles,
            machine=elf.machine_facts(library, blob.symbol),
        )
        for lowered, blob in zip(group, blobs, strict=True)
    ]


def answer(group: Sequence[Lowered], path: str, compile: Compile = by_nvcc) -> Sequence[Built]:
    """Build `group` as `build` does, but return a `Failure` if its only member does not compile.

    If a larger group fails, its error is raised, because the faulty member is unknown. If the machine lacks resources
    or a compiler was killed, an error is raised for a group of any size.
    """
    try:
        return build(group, path, compile)
    except BaseException as error:
        message = message_of(error).strip()
        output = message.rpartition("Compilation error:\n")[2]  # tilelang puts the source before it
        check_compiled(error, output)
        if len(group) > 1:
            raise
        if isinstance(error, CompileError) or "Compilation error" in message:
            first = _without_places(_first_error(output)).strip()[:MESSAGE_CHARACTERS]
            return [Failure(group[0].index, "compile", first, message[-DETAIL_CHARACTERS:])]
        return [Failure(group[0].index, "codegen", in_one_line(error), message[-DETAIL_CHARACTERS:])]


def _first_error(text: str) -> str:
    """Return the most useful line of a compiler's output: a missing symbol, the first error or the first cause."""
    lines = [line for line in text.splitlines() if cause_in(line)]
    for wanted in ("undefined reference", "multiple definition", "error: ", "fatal", "error"):
        if match := next((line for line in lines if wanted in line.lower()), None):
            return match
    return cause_in(text)


def _without_places(line: str) -> str:
    """Return a compiler's line without temporary file names and offsets, so that equal failures have equal messages."""
    named = re.sub(r"(?:\S*/)?[^/\s:]+\.part", "kernel", re.sub(r"\S*/tvm_kernels(?=\.cu\b)", "kernel", line))
    return re.sub(r":\(\.text[^)]*\)| at line \d+ in function \w+", "", named)


def _build_cuda(blobs: Sequence[Blob], path: str, compile: Compile) -> MachineCode:
    pass_configs = {**blobs[0].pass_configs, **flags_config(blobs[0].flags)}  # the same for all members of a merge key
    device = merged([load_ir(blob.device) for blob in blobs])
    current = tilelang.tvm.transform.PassContext(opt_level=3, config=tilelang.normalize_pass_configs(pass_configs))
    with current, backend_context().target:
        machine_code = compile(printed(device), pass_configs)
        runtime = _runtime_module(device, machine_code.code)
        with tempfile.TemporaryDirectory(dir=session().run_dir, prefix="link-") as folder:
            link([load_ir(blob.host) for blob in blobs], runtime, path, folder)
    return machine_code


def _runtime_module(device: Any, code: bytes) -> Any:
    """Return tilelang's runtime module of `device`. When tilelang calls nvcc, tilelang gets the binary `code`
    instead."""
    nvcc = tilelang.tvm.get_global_func(tilelang.NVCC)
    tilelang.tvm.register_global_func(tilelang.NVCC, lambda *_: bytearray(code), override=True)
    try:
        return tilelang.device_codegen(device, backend_context())
    finally:
        tilelang.tvm.register_global_func(tilelang.NVCC, nvcc, override=True)


def _build_c(sources: Sequence[str], flags: Sequence[str] | None, path: str) -> None:
    """Compile `sources` into the library `path`. Raises `CompileError` with g++'s output."""
    source = path + ".cpp"
    with open(source, "w") as file:
        file.write("\n".join(sources))
    command = [shutil.which("g++") or shutil.which("c++") or "g++", "-std=c++17"]
    command += [*(CPU_FLAGS if flags is None else flags), "-fPIC", "-shared", "-x", "c++", source]
    command += ["-Wl,-z,defs"]  # an undefined symbol fails its member here, not the whole library at load time
    command += [f"-I{tilelang.paths().TILELANG_TEMPLATE_PATH}", "-o", path]
    run_compiler(command, "g++")
    os.remove(source)


# ---- tilelang's steps


class CompileError(Exception):
    """A compiler rejected the source. The compiler's output follows the first line of the message."""


def run_compiler(command: Sequence[str], what: str) -> None:
    """Run the compiler `what`. If the compiler fails, raise `CompileError` with the compiler's name, errors and
    command."""
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if done.returncode != 0:
        how = f"exit status {done.returncode}" if done.returncode > 0 else f"killed by signal {-done.returncode}"
        raise CompileError(f"{what} failed, {how}\n{done.stderr.strip()}\n{shlex.join(command)}")


def link(hosts: Sequence[Any], device: Any, path: str, folder: str) -> None:
    """Link the library `path` with tvm. Raises `CompileError` with gcc's output.

    `hosts`: the host's half of each kernel. `device`: the runtime module with the device code. `folder`: a folder for
    temporary files.
    """
    library = tilelang.host_codegen(merged(hosts), backend_context())
    library.import_module(device)
    # tvm asks `fcompile` for its `object_format`. `_link_library` has none, so tvm writes C for the host, as needed.
    tilelang.tvm.runtime.Executable(library).export_library(
        path, fcompile=_link_library, fpack_imports=_pack_device_code, workspace_dir=folder
    )


def _link_library(output: str, files: Sequence[str], options: Sequence[str] = (), **_: Any) -> None:
    """Link C code for the host and the file from `_pack_device_code` into a library. Called by tvm's `export_library`.
    Raises `CompileError` with gcc's output."""
    gcc = shutil.which("gcc") or shutil.which("g++") or "gcc"
    run_compiler([gcc, "-fPIC", "-w", "-shared", "-o", output, *files, *options], "linking")


def _pack_device_code(library: Any, _system_library: bool, prefix: str, folder: str) -> str:
    """Write an assembler file with the device code of `library`, and return its path. Called by tvm's `export_library`.

    tvm itself would write the same bytes as a C array. Printing the array takes part of a second, and gcc needs more
    time to parse the array than for all other code.
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
    """Return the source that tilelang generates for a device module."""
    return str(tilelang.device_codegen_without_compile(device, backend_context()).inspect_source())


def merged(modules: Sequence[Any]) -> Any:
    """Merge the functions of modules into one module. Raises `ValueError` if two functions have the same name."""
    functions: dict[Any, Any] = {}
    names: set[str] = set()
    for module in modules:
        for name, function in module.functions.items():
            if name.name_hint in names:
                raise ValueError(f"two members of the group define {name.name_hint}")
            names.add(name.name_hint)
            functions[name] = function
    return tilelang.tvm.IRModule(functions, attrs=modules[0].attrs)


def load_ir(text: str) -> Any:
    """Load an object that `tvm.ir.save_json` wrote.

    `tvm.ir.load_json` would first run Python code for JSON of older releases, which takes ten times as long as loading.
    """
    return tilelang.tvm.get_global_func(tilelang.LOAD_JSON)(text)


def flags_config(flags: Sequence[str] | None) -> dict[str, Any]:
    """Return the pass configuration that makes tilelang pass compile flags to nvcc."""
    return {"tl.device_compile_flags": list(flags)} if flags else {}
