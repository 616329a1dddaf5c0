"""Lowered → Artifact: compile a group's kernels and link them into one library."""

from __future__ import annotations

import os
import re
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from atune.errors import message_of, name_of
from atune.model.artifact import Artifact, Built, Failure, Lowered, source_path
from atune.stages.compile import elf
from atune.stages.compile.compilers import CompileError, CompilerOutput, build_c, first_error
from atune.stages.compile.device_source import flags_config
from atune.stages.compile.lowering import Blob
from atune.stages.compile.steps import (
    NVCC,
    CompileTask,
    HostHalf,
    LinkTask,
    MachineCode,
    Steps,
    backend_context,
    load_ir,
    merged,
    printed,
)
from atune.stages.session.session import session
from atune.workers.system.resources import check_compiled


def build(group: Sequence[Lowered], path: str, steps: Steps) -> list[Artifact]:
    """Compile `group` into the library `path`. Members must share one `merge_key`. Raises the compilers' errors."""
    started = time.perf_counter()
    if len({lowered.merge_key for lowered in group}) != 1:
        raise ValueError("members of different merge keys cannot share a library")
    blobs = [msgspec.msgpack.decode(lowered.blob, type=Blob) for lowered in group]
    part = f"{path}.{os.getpid()}.part"  # a killed build leaves no file under the final name
    kind, verbose = session().target.kind, session().compile.verbose
    with CompilerOutput(verbose) as output:
        if kind == "c":
            build_c([blob.source for blob in blobs], blobs[0].flags, part, verbose)
            compiled = MachineCode(b"", "g++")
        else:
            compiled = _build_cuda(blobs, part, steps)
    for blob in blobs:
        with open(source_path(path, blob.symbol), "w", errors="replace") as file:
            file.write(blob.source)
    os.replace(part, path)
    library = Path(path).read_bytes() if kind == "cuda" else b""
    seconds, output_text = round(time.perf_counter() - started, 4), output.text() if verbose else ""
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
            words=output_text,
            plain=steps.plain_builds and blob.plain,
            store_key=lowered.store_key,
            source_key=blob.source_key,
            machine=elf.machine_facts(library, blob.symbol),
        )
        for lowered, blob in zip(group, blobs, strict=True)
    ]


def answer(group: Sequence[Lowered], path: str, steps: Steps) -> Sequence[Built]:
    """Do as `build`, but answer with a `Failure` if a group of one does not compile.

    A larger group that fails raises, because the faulty member is unknown. A lack of resources, or a kill, raises, too.
    """
    try:
        return build(group, path, steps)
    except BaseException as error:
        message = message_of(error).strip()
        check_compiled(error, message.rpartition("Compilation error:\n")[2])  # tilelang puts the source before it
        if len(group) > 1:
            raise
        first = _alike(first_error(message))
        kind = "compile" if isinstance(error, CompileError) or "Compilation error" in message else "codegen"
        return [Failure(group[0].index, kind, f"{name_of(error)}: {first.strip()}"[:500], message[-4000:])]  # type: ignore[arg-type]


def _alike(line: str) -> str:
    """Return a compiler's line without its library's name and offsets, so that failures of one kind count together."""
    return re.sub(r":\(\.text[^)]*\)", "", re.sub(r"(?:\S*/)?[^/\s:]+\.part", "kernel", line))


def _build_cuda(blobs: Sequence[Blob], path: str, steps: Steps) -> MachineCode:
    from tilelang import tvm
    from tilelang.transform.pass_config import normalize_pass_configs

    pass_configs = {**blobs[0].pass_configs, **flags_config(blobs[0].flags)}  # one merge key, so the same for all
    device = merged([load_ir(blob.device) for blob in blobs])
    hosts = tuple(HostHalf(blob.symbol, blob.host) for blob in blobs)
    current = tvm.transform.PassContext(opt_level=3, config=normalize_pass_configs(pass_configs))
    with current, backend_context().target:
        compiled = steps.compile(CompileTask(printed(device), pass_configs))
        runtime = _runtime_module(device, compiled.code)
        with tempfile.TemporaryDirectory(dir=session().run_dir, prefix="link-") as folder:
            steps.link(LinkTask(hosts, runtime, path, folder))
    return compiled


def _runtime_module(device: Any, code: bytes) -> Any:
    """Return tilelang's runtime module of `device`: it receives the binary `code` when it requests a compile."""
    import tvm_ffi
    from tilelang.engine.lower import device_codegen

    nvcc = tvm_ffi.get_global_func(NVCC)
    tvm_ffi.register_global_func(NVCC, lambda *_: bytearray(code), override=True)
    try:
        return device_codegen(device, backend_context())
    finally:
        tvm_ffi.register_global_func(NVCC, nvcc, override=True)
