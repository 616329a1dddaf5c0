"""Lowered → Artifact: compile a group's kernels, by g++ or for CUDA, and link them into one library."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from atune.errors import DETAIL_CHARACTERS, MESSAGE_CHARACTERS, cause_in, in_one_line, message_of
from atune.model.artifact import Artifact, Built, Failure, Lowered, source_path
from atune.model.settings import CPU_FLAGS
from atune.stages import tilelang
from atune.stages.compile import elf
from atune.stages.compile.device_source import flags_config
from atune.stages.compile.lowering import Blob
from atune.stages.compile.steps import (
    Compile,
    CompileError,
    MachineCode,
    backend_context,
    link,
    load_ir,
    merged,
    printed,
    run_compiler,
)
from atune.stages.compile.steps import compile as by_nvcc
from atune.stages.session.session import session
from atune.workers.system.resources import check_compiled


def build(group: Sequence[Lowered], path: str, compile: Compile = by_nvcc) -> list[Artifact]:
    """Compile `group` into the library `path`. Members must share one `merge_key`. Raises the compilers' errors.

    `compile`: compiles CUDA's device code.
    """
    started = time.perf_counter()
    if len({lowered.merge_key for lowered in group}) != 1:
        raise ValueError("members of different merge keys cannot share a library")
    blobs = [msgspec.msgpack.decode(lowered.blob, type=Blob) for lowered in group]
    part = f"{path}.{os.getpid()}.part"  # a killed build leaves no file under the final name
    kind = session().target.kind
    if kind == "c":
        _build_c([blob.source for blob in blobs], blobs[0].flags, part)
        compiled = MachineCode(b"", "g++")
    else:
        compiled = _build_cuda(blobs, part, compile)
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
            compiler=compiled.compiler,
            why=compiled.why,
            store_key=lowered.store_key,
            source_key=blob.source_key,
            machine=elf.machine_facts(library, blob.symbol),
        )
        for lowered, blob in zip(group, blobs, strict=True)
    ]


def answer(group: Sequence[Lowered], path: str, compile: Compile = by_nvcc) -> Sequence[Built]:
    """Do as `build`, but answer with a `Failure` if a group of one does not compile.

    A larger group that fails raises, because the faulty member is unknown. A lack of resources, or a kill, raises, too.
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
            first = _alike(_first_error(output)).strip()[:MESSAGE_CHARACTERS]
            return [Failure(group[0].index, "compile", first, message[-DETAIL_CHARACTERS:])]
        return [Failure(group[0].index, "codegen", in_one_line(error), message[-DETAIL_CHARACTERS:])]


def _first_error(text: str) -> str:
    """Return the most informative line of compiler output: the linker's missing symbol, the first error, or the first
    that names a cause."""
    lines = [line for line in text.splitlines() if cause_in(line)]
    for wanted in ("undefined reference", "multiple definition", "error: ", "fatal", "error"):
        if found := next((line for line in lines if wanted in line.lower()), None):
            return found
    return cause_in(text)


def _alike(line: str) -> str:
    """Return a compiler's line without names of temporary files and offsets: failures of one kind count together."""
    named = re.sub(r"(?:\S*/)?[^/\s:]+\.part", "kernel", re.sub(r"\S*/tvm_kernels(?=\.cu\b)", "kernel", line))
    return re.sub(r":\(\.text[^)]*\)| at line \d+ in function \w+", "", named)


def _build_cuda(blobs: Sequence[Blob], path: str, compile: Compile) -> MachineCode:
    pass_configs = {**blobs[0].pass_configs, **flags_config(blobs[0].flags)}  # one merge key, so the same for all
    device = merged([load_ir(blob.device) for blob in blobs])
    current = tilelang.tvm.transform.PassContext(opt_level=3, config=tilelang.normalize_pass_configs(pass_configs))
    with current, backend_context().target:
        compiled = compile(printed(device), pass_configs)
        runtime = _runtime_module(device, compiled.code)
        with tempfile.TemporaryDirectory(dir=session().run_dir, prefix="link-") as folder:
            link([load_ir(blob.host) for blob in blobs], runtime, path, folder)
    return compiled


def _runtime_module(device: Any, code: bytes) -> Any:
    """Return tilelang's runtime module of `device`: it receives the binary `code` when it requests a compile."""
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
    command += ["-Wl,-z,defs"]  # an undefined symbol fails here, with its member, not the whole library at loading
    command += [f"-I{tilelang.paths().TILELANG_TEMPLATE_PATH}", "-o", path]
    run_compiler(command, "g++")
    os.remove(source)
