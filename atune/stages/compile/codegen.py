"""Lowered → Artifact: merge a group's host and device modules and make one shared library of them."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import msgspec

from atune.model.artifact import Artifact, Built, Failure, Lowered, source_path
from atune.model.settings import CPU_FLAGS
from atune.processes.messages import BuildJob
from atune.stages.accelerators import cicc, headers, orders
from atune.stages.compile import alone, ir, linking
from atune.stages.compile.device_source import flags_config, flavour_of, for_nvcc
from atune.stages.compile.linking import CompileError
from atune.stages.compile.lowering import Blob, _shares
from atune.stages.session.session import session

MAX_WORDS = 20_000
"""Bytes that are kept of what compilers say."""


def run(payload: bytes) -> bytes:
    """Entry point: msgpack of a `BuildJob` → msgpack of a list of `Artifact` or `Failure`, one a member.

    A group of several that fails raises: nobody knows yet whose fault it is. A group of one answers with a `Failure`.
    """
    job = msgspec.msgpack.decode(payload, type=BuildJob)
    try:
        built: Sequence[Built] = build(job.group, job.path, job.service, exact=job.exact)
    except Exception as error:
        if len(job.group) > 1:
            raise
        words = str(error).strip()
        first = re.sub(r"\S*/[^/\s:]+\.part", "kernel", _first_error(words))  # failures of one kind count together
        kind = "compile" if isinstance(error, CompileError) or "Compilation error" in words else "codegen"
        built = [Failure(job.group[0].index, kind, f"{type(error).__name__}: {first.strip()}"[:500], words[-4000:])]  # type: ignore[arg-type]
    return msgspec.msgpack.encode(built)


def _first_error(words: str) -> str:
    """Return the line of a compiler's words that says most: what the linker misses, the first error, the first line."""
    lines = words.splitlines()
    for wanted in ("undefined reference", "error: ", "error", "fatal"):
        if found := next((line for line in lines if wanted in line.lower()), None):
            return found
    return lines[0] if lines else ""


def build(group: Sequence[Lowered], path: str, service: bool = False, *, exact: bool = False) -> list[Artifact]:
    """Compile `group` into the library `path`. Members must be of one `merge_key`. Raises what the compilers say.

    `service`, `exact`: as in a `BuildJob`.
    """
    started = time.perf_counter()
    if len({lowered.merge_key for lowered in group}) != 1:
        raise ValueError("members of different merge keys cannot share a library")
    blobs = [msgspec.msgpack.decode(lowered.blob, type=Blob) for lowered in group]
    part = f"{path}.{os.getpid()}.part"  # a killed build leaves no file under the final name
    kind, backend, calls, shared = session().target.kind, blobs[0].backend, None, frozenset[str]()
    with Words(session().compile.verbose or bool(backend)) as words:
        if kind == "c":
            compiler, why = _build_c(blobs, part), ""
        elif backend:
            compiler, calls, why = *_build_alone(blobs, part, words), ""
        else:
            compiler, why, shared = _build_cuda(blobs, part, service, exact)
    for blob in blobs:
        with open(source_path(path, blob.symbol), "w", errors="replace") as file:
            file.write(blob.source)
    os.replace(part, path)
    seconds = round(time.perf_counter() - started, 4)
    said = words.text() if session().compile.verbose else ""
    return [
        Artifact(
            lowered.index,
            path,
            blob.symbol,
            lowered.params,
            kind,
            seconds,
            blob.calls if calls is None else calls,
            compiler,
            why,
            backend,
            said,
            blob.symbol in shared,
        )
        for lowered, blob in zip(group, blobs, strict=True)
    ]


class Words:
    """While entered, catches what this process and its compilers write to stdout and stderr, where `wanted`.

    It is written there afterwards: where a crash interrupts, nothing is lost but what this file holds.
    """

    def __init__(self, wanted: bool) -> None:
        self._file = tempfile.TemporaryFile() if wanted else None  # noqa: SIM115

    def __enter__(self) -> Words:
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
        """Return the end of what was caught so far."""
        if self._file is None:
            return ""
        self._flush()
        size = os.fstat(self._file.fileno()).st_size
        data = os.pread(self._file.fileno(), MAX_WORDS, max(0, size - MAX_WORDS))
        return data.decode(errors="replace").strip()

    @staticmethod
    def _flush() -> None:
        sys.stdout.flush()
        sys.stderr.flush()


def _build_alone(blobs: Sequence[Blob], path: str, words: Words) -> tuple[str, tuple[int | str, ...]]:
    (blob,) = blobs
    try:
        return alone.build(blob, path, _context().target, session().compile.verbose)
    except Exception as error:
        said = words.text()
        if not re.search("Compilation Failed|Compilation error", str(error)):
            raise
        # tilelang's error holds the command and the whole source; what is wrong stands in the compiler's words.
        message = said or re.sub(r"^.*?Compilation error:\n", "", str(error), flags=re.DOTALL)
        raise CompileError(f"{'nvcc' if blob.backend == 'cython' else 'NVRTC'} failed\n{message}") from None


def _context() -> Any:
    from tilelang.backend.module import create_backend_context

    return create_backend_context(session().target.tvm(), session().compile.target_host, "auto")


def _build_c(blobs: Sequence[Blob], path: str) -> str:
    from tilelang.env import TILELANG_TEMPLATE_PATH

    source = path + ".cpp"
    with open(source, "w") as file:
        file.write("\n".join(blob.source for blob in blobs))
    compiler = shutil.which("g++") or shutil.which("c++") or "g++"
    flags = blobs[0].flags  # one merge key, so the same for all
    command = [
        compiler,
        "-std=c++17",
        *(CPU_FLAGS if flags is None else flags),
        "-fPIC",
        "-shared",
        "-x",
        "c++",
        source,
    ]
    command += ["-Wl,-z,defs"]  # an undefined symbol fails here, with its member, and not the whole library on loading
    command += [f"-I{TILELANG_TEMPLATE_PATH}", "-o", path]
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if done.returncode != 0:
        how = f"exit status {done.returncode}" if done.returncode > 0 else f"killed by signal {-done.returncode}"
        raise CompileError(f"g++ failed, {how}\n{done.stderr.strip()}\n{shlex.join(command)}")
    os.remove(source)
    if session().compile.verbose:
        print(f"{shlex.join(command)}\n{done.stderr}", file=sys.stderr)
    return "g++"


def _build_cuda(blobs: Sequence[Blob], path: str, service: bool | str, exact: bool) -> tuple[str, str, frozenset[str]]:
    """Return the device compiler, why not the service's where that was there, and the symbols that share their code."""
    from tilelang import tvm
    from tilelang.engine.lower import device_codegen, host_codegen
    from tilelang.transform.pass_config import normalize_pass_configs

    context = _context()
    pass_configs = {**blobs[0].pass_configs, **flags_config(blobs[0].flags)}
    codes = [(blob.symbol, blob.host_code) for blob in blobs if blob.host_code is not None]  # all, or none
    devices = {blob.symbol: ir.load(blob.device) for blob in blobs}
    device_compiler = DeviceCompiler(pass_configs, service)
    if _shares() and not exact and device_compiler.service:
        device_compiler.families = orders.families(blobs)
    with tvm.transform.PassContext(opt_level=3, config=normalize_pass_configs(pass_configs)), context.target:
        if codes:  # what the host's module says is not read: it only holds the device's
            library = tvm.get_global_func("runtime.CSourceModuleCreate")("", "c", [], [])
        else:
            library = host_codegen(_merge(tvm, [ir.load(blob.host) for blob in blobs]), context)
        with device_compiler:
            layers = orders.layers(list(devices), device_compiler.families)
            while layers:
                device = _merge(tvm, [devices[symbol] for symbol in layers.pop(0)])
                library.import_module(device_codegen(device, context))
                device_compiler.layer += 1
                if not device_compiler.sharing and layers:
                    layers = [[symbol for layer in layers for symbol in layer]]  # nothing is shared any more
    with tempfile.TemporaryDirectory(dir=session().run_dir, prefix="link-") as workspace:
        if codes:
            files = linking.host_files(blobs, codes, workspace, exact)
            linking.link(path, [*files, linking.pack(library, False, "", workspace)])
        else:
            # tvm asks a compiler function for its `object_format`; without one it writes C for the host, as we want.
            tvm.runtime.Executable(library).export_library(
                path, fcompile=linking.link, fpack_imports=linking.pack, workspace_dir=workspace
            )
    families = device_compiler.families if device_compiler.sharing else []
    return device_compiler.used, device_compiler.why, frozenset(s for family in families for s in family.symbols)


class DeviceCompiler:
    """While entered, tilelang's CUDA compile goes to the compile service, where it is there, else to nvcc.

    `service`: the service's compiler, ``cicc`` or ``nvrtc``, or nothing.
    """

    NAME = "tilelang_callback_cuda_compile"

    def __init__(self, pass_configs: dict[str, Any], service: bool | str) -> None:
        reason = for_nvcc(pass_configs) if service else ""
        self.service = "" if reason or not service else "cicc"
        self.flavour = flavour_of(session().target.arch, pass_configs)
        self.flags = bool(pass_configs.get("tl.device_compile_flags"))
        self.used = "nvcc"
        self.why = f"nvcc, because {reason}" if reason else ""
        self.families: list[orders.Family] = []
        self.layer = 0
        """Which part of the group is compiled: where kernels are shared, each has one of a family at most."""
        self._binaries: list[bytes] = []
        """Those of the layers, where one compile made them all."""

    def __enter__(self) -> None:
        import tvm_ffi

        self._nvcc = tvm_ffi.get_global_func(self.NAME)
        tvm_ffi.register_global_func(self.NAME, self._compile, override=True)

    def __exit__(self, *_: object) -> None:
        import tvm_ffi

        tvm_ffi.register_global_func(self.NAME, self._nvcc, override=True)

    def _compile(self, code: str, target: Any, pass_config: Any = None) -> Any:
        if not self.service:
            return self._by_nvcc(str(code), target, pass_config)
        try:
            cubin = self._cubin(str(code))
        except (cicc.CiccError, OSError) as error:
            compiled = self._by_nvcc(str(code), target, pass_config)  # what both refuse is the kernel's own mistake
            self.why = f"{self.service} could not compile what nvcc could: {str(error)[:300]}"
            self.used, self.service = "nvcc", ""
            return compiled
        self.used = self.service
        return bytearray(cubin)

    def _by_nvcc(self, code: str, target: Any, pass_config: Any) -> Any:
        """Compile as tilelang does, with the headers that do for it where the user asks for nothing else."""
        from tilelang.env import CUTLASS_INCLUDE_DIR, TILELANG_TEMPLATE_PATH

        used = headers.uses(code)
        plain = not (self.flags or session().compile.verbose or os.environ.get(headers.PREPENDED))
        if used is not None and plain:
            with suppress(Exception):  # whatever is wrong, it is told below
                run_dir = session().run_dir
                folder = headers.without_unused(TILELANG_TEMPLATE_PATH, CUTLASS_INCLUDE_DIR, used, run_dir)
                if folder is not None:
                    with headers.included_first(folder):
                        return self._nvcc(code, target, pass_config)
        return self._nvcc(code, target, pass_config)

    @property
    def sharing(self) -> bool:
        """Whether one compile made the code of all in `families`."""
        return bool(self._binaries)

    def _cubin(self, code: str) -> bytes:
        """Return the binary of one layer. What is printed otherwise here than alone is compiled by itself."""
        if self.layer == 0 and self.families:
            with suppress(ValueError, cicc.CiccError):
                shared = self._remotely(orders.with_choice(code, self.families), lines=False)
                layers = range(max(len(family.symbols) for family in self.families))
                self._binaries = [orders.variant(shared, self.families, layer) for layer in layers]
                members = sum(len(family.symbols) for family in self.families)
                self.why = f"{members} kernels by {len(self.families)} compiles: they differ in their block order"
        if self.layer < len(self._binaries):
            return self._binaries[self.layer]
        return self._remotely(code)

    def _remotely(self, code: str, *, lines: bool = True) -> bytes:
        return cicc.compile_remotely(code, self.flavour, session().run_dir, lines=lines)


def _merge(tvm: Any, modules: Sequence[Any]) -> Any:
    functions: dict[Any, Any] = {}
    names: set[str] = set()
    for module in modules:
        for name, function in module.functions.items():
            if name.name_hint in names:
                raise ValueError(f"{name.name_hint} is defined by two members of the group")
            names.add(name.name_hint)
            functions[name] = function
    return tvm.IRModule(functions, attrs=modules[0].attrs)
