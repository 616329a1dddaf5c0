"""NVRTC with a precompiled header, as a compile service: one process makes the header, its forks compile with it.

nvcc parses the same megabytes of headers for every library. NVRTC can keep that parse (its PCH), but only within a
process, and it never frees what a compile took. So one process makes the header, then listens; for every request it
forks a child, which inherits the header, compiles, answers and ends. That process imports neither tilelang nor torch:
it can make the header while others still do.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import functools
import glob
import importlib.util
import os
import re
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any, NoReturn

import msgspec

from atune.protocol import NvrtcReady
from atune.stages.lowering import Blob
from atune.stages.session import visible_gpus

PCH_HEAP_BYTES = 1 << 30
"""Address space for the PCH. At NVRTC's own default, 256 MiB, TileLang's headers do not fit, and NVRTC then silently
compiles without it, in twice the time."""
SOCKET = "nvrtc.sock"
NO_PCH_ATTEMPTED = 13
"""NVRTC_ERROR_NO_PCH_CREATE_ATTEMPTED: none was made because one was found."""
_SIZE = struct.Struct("!Q")
_F_SETSIG = 10


GUESS = (
    "instruction/wgmma.h", "intrin.h", "barrier.h", "copy_sm90.h", "reduce.h", "scan.h", "ldsm.h",
    "threadblock_swizzle.h", "debug.h",
)  # fmt: skip
"""Headers of tilelang's that kernels mostly include, in its order. A kernel that includes others has those parsed too;
one that includes fewer compiles to the same code."""
GUESS_BEFORE_HOPPER = ("instruction/mma.h", "intrin.h", *GUESS[4:])
STD = "#include <tl_templates/cuda/nvrtc_std.h>\n"
"""What tilelang puts ahead of a source for NVRTC."""
STOP = "#pragma nv_hdrstop\n"
"""Ends what is precompiled, so that whatever follows uses it."""


class Flavour(msgspec.Struct, frozen=True):
    """What NVRTC's options depend on."""

    arch: str
    fast_math: bool = False


class Request(msgspec.Struct, frozen=True):
    source: str
    flavour: Flavour


class Reply(msgspec.Struct, frozen=True):
    """A cubin, or what the compiler said."""

    cubin: bytes = b""
    log: str = ""


class NvrtcError(Exception):
    """NVRTC is not there, or refused the source. Its words are the message."""


class Nvrtc:
    """The library, through ctypes: it is a plain C interface, and the binding packages differ by CUDA version."""

    def __init__(self) -> None:
        self._library = _load_library()
        if status := self._library.nvrtcSetPCHHeapSize(ctypes.c_size_t(PCH_HEAP_BYTES)):
            raise NvrtcError(f"nvrtcSetPCHHeapSize: status {status}")

    def compile(self, source: str, options: Sequence[str]) -> tuple[bytes, int]:
        """Return the cubin, and the status of making a PCH. Raises `NvrtcError` with the compiler's log."""
        library, program = self._library, ctypes.c_void_p()
        library.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"kernels.cu", 0, None, None)
        array = (ctypes.c_char_p * len(options))(*[option.encode() for option in options])
        status = library.nvrtcCompileProgram(program, len(options), array)
        if status:
            log = self._bytes(program, "ProgramLog").rstrip(b"\0").decode(errors="replace")
            raise NvrtcError(f"NVRTC failed, status {status}\n{log.strip()}")
        return self._bytes(program, "CUBIN"), int(library.nvrtcGetPCHCreateStatus(program))

    def _bytes(self, program: ctypes.c_void_p, what: str) -> bytes:
        size = ctypes.c_size_t()
        getattr(self._library, f"nvrtcGet{what}Size")(program, ctypes.byref(size))
        buffer = ctypes.create_string_buffer(size.value)
        getattr(self._library, f"nvrtcGet{what}")(program, buffer)
        return buffer.raw


def _load_library() -> Any:
    """Load libnvrtc 12.8 or newer, which knows PCH: of the pip package, of the CUDA toolkit, or of the system."""
    for path in _library_paths():
        try:
            for builtins in sorted(glob.glob(os.path.join(os.path.dirname(path), "libnvrtc-builtins.so.*"))):
                ctypes.CDLL(builtins, mode=ctypes.RTLD_GLOBAL)  # NVRTC looks for it by its bare name
            library = ctypes.CDLL(path)
        except OSError:
            continue
        if hasattr(library, "nvrtcSetPCHHeapSize"):
            return library
    raise NvrtcError(
        "libnvrtc (12.8 or newer) is not there; pip install nvidia-cuda-nvrtc, or the CUDA toolkit, has it"
    )


def _library_paths() -> list[str]:
    home = tilelang_paths().CUDA_HOME
    found = [f for p in sys.path if p for f in sorted(glob.glob(f"{p}/nvidia/*/lib/libnvrtc.so.*"))]
    found += sorted(glob.glob(f"{home}/lib64/libnvrtc.so.*")) if home else []
    return [*found, "libnvrtc.so.13", "libnvrtc.so.12"]


def library_identity() -> str:
    """Return what tells the NVRTC of this machine from another one, without loading the ones whose files are known."""
    found = []
    for path in _library_paths():
        if os.path.exists(path):
            status = os.stat(os.path.realpath(path))
            found.append(f"{os.path.realpath(path)} {status.st_size} {status.st_mtime_ns}")
    if not found:
        with contextlib.suppress(NvrtcError):
            library, major, minor = _load_library(), ctypes.c_int(), ctypes.c_int()
            library.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
            found.append(f"nvrtc {major.value}.{minor.value}")
    return ", ".join(found)


def for_nvcc(pass_configs: dict[str, Any]) -> str:
    """Say why only nvcc can do the work that tilelang would ask of it; empty where NVRTC can."""
    if any(os.environ.get(name) for name in ("NVCC_APPEND_FLAGS", "NVCC_PREPEND_FLAGS")):
        return "NVCC_APPEND_FLAGS and NVCC_PREPEND_FLAGS are for nvcc"
    if os.environ.get("TILELANG_VERBOSE", "0").lower() in ("1", "true", "yes", "on"):
        return "ptxas' figures, which verbose asks for, are told by nvcc"
    if pass_configs.get("tl.device_compile_flags"):
        return "compile flags are for nvcc"
    return "register levels are for nvcc" if pass_configs.get("tl.ptxas_register_usage_level") is not None else ""


def flavour_of(arch: str, pass_configs: dict[str, Any]) -> Flavour:
    return Flavour(arch, bool(pass_configs.get("tl.enable_fast_math")))


@functools.cache
def options_for(arch: str, fast_math: bool) -> tuple[str, ...]:
    """Return NVRTC's options for nvcc's work as tilelang asks for it. Raises `NvrtcError` where headers are missing."""
    where, headers = tilelang_paths(), cuda_headers()
    if headers is None:
        raise NvrtcError("the CUDA headers are not found")
    options = ["-default-device", f"--gpu-architecture={arch}", "--std=c++20"]
    options += [f"-I{where.TILELANG_TEMPLATE_PATH}", f"-I{where.CUTLASS_INCLUDE_DIR}"]
    options += [f"-I{headers}", f"-I{headers}/cccl"]
    return (*options, "--use_fast_math") if fast_math else tuple(options)


def tilelang_paths() -> Any:
    """Return the module that knows where tilelang's files and CUDA lie, by itself where tilelang is not imported.

    Importing tilelang takes seconds; the service has no other need of it.
    """
    if "tilelang" in sys.modules:
        from tilelang import env

        return env
    name = "atune_tilelang_env"
    if name not in sys.modules:
        package = importlib.util.find_spec("tilelang")
        folders = package.submodule_search_locations if package is not None else None
        spec = importlib.util.spec_from_file_location(name, os.path.join(folders[0], "env.py")) if folders else None
        if spec is None or spec.loader is None:
            raise NvrtcError("tilelang is not installed")
        module = sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return sys.modules[name]


@functools.cache
def cuda_headers() -> str | None:
    """Return the CUDA toolkit's include folder, which nvcc knows by itself and NVRTC does not."""
    home = tilelang_paths().CUDA_HOME

    def toolkits() -> Iterator[str]:
        yield from (home, os.environ.get("CUDA_HOME", ""), os.environ.get("CUDA_PATH", ""))
        nvcc = os.path.join(home, "bin", "nvcc")
        yield os.path.dirname(os.path.dirname(os.path.realpath(nvcc)))
        # nvcc may be a script that calls the real one: that one tells where it lies.
        dry = subprocess.run([nvcc, "--dryrun", "-x", "cu", "/dev/null"], capture_output=True, text=True)
        yield from re.findall(r"^#\$ TOP=(.+)$", dry.stderr, re.MULTILINE)
        yield "/usr/local/cuda"

    found = (os.path.join(toolkit, "include") for toolkit in toolkits() if toolkit)
    return next((f for f in found if os.path.exists(os.path.join(f, "vector_types.h"))), None)


def flags_config(flags: Sequence[str] | None) -> dict[str, Any]:
    """Return the pass configuration that carries compile flags to nvcc."""
    return {"tl.device_compile_flags": list(flags)} if flags else {}


class _Service:
    nvrtc: Nvrtc
    listener: socket.socket
    prefixes: dict[Flavour, str]
    """What the precompiled header of each flavour holds."""


_service = _Service()
_service.prefixes = {}


def header(payload: bytes) -> bytes:
    """Entry point: msgpack of an arch → `NvrtcReady`: make a header of what kernels mostly include.

    That needs to know no kernel. Without an arch it is that of this machine's first GPU.
    """
    try:
        flavour = Flavour(msgspec.msgpack.decode(payload, type=str) or _arch_of_this_machine())
        hopper = int(re.sub(r"\D", "", flavour.arch) or 0) >= 90
        includes = [f"#include <tl_templates/cuda/{name}>\n" for name in (GUESS if hopper else GUESS_BEFORE_HOPPER)]
        seconds = _make(flavour, "".join([STD, *includes, STOP]))
    except NvrtcError as error:
        return msgspec.msgpack.encode(NvrtcReady(False, str(error)[:500]))
    return msgspec.msgpack.encode(NvrtcReady(True, "", seconds))


def listen(payload: bytes) -> bytes:
    """Entry point: msgpack of (a lowered candidate's blob, arch, folder) → `NvrtcReady`: the socket in `folder` open.

    Where there is no header for the candidate's flavour yet, it is made of what its source includes.
    """
    data, arch, folder = msgspec.msgpack.decode(payload, type=tuple[bytes, str, str])
    blob = msgspec.msgpack.decode(data, type=Blob)
    flavour, seconds = flavour_of(arch, blob.pass_configs), 0.0
    try:
        if reason := for_nvcc({**blob.pass_configs, **flags_config(blob.flags)}):
            raise NvrtcError(reason)
        if flavour not in _service.prefixes:
            before = blob.source.partition('extern "C"')[0]
            includes = re.findall(r"^#include <tl_templates/[^>\n]*>\n", before, re.MULTILINE)
            seconds = _make(flavour, "".join([STD, *includes, STOP]))
    except NvrtcError as error:
        return msgspec.msgpack.encode(NvrtcReady(False, str(error)[:500]))
    _service.listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with _Folder(folder) as short:
        _service.listener.bind(f"{short}/{SOCKET}")
    _service.listener.listen(128)
    return msgspec.msgpack.encode(NvrtcReady(True, "", seconds))


def _make(flavour: Flavour, prefix: str) -> float:
    """Make the precompiled header of `flavour`, check that it is used, and return the seconds that making it took."""
    started = time.perf_counter()
    options = (*options_for(flavour.arch, flavour.fast_math), "-pch")
    if not hasattr(_service, "nvrtc"):
        _service.nvrtc = Nvrtc()
    empty = f"{prefix}__global__ void atune_empty() {{}}\n"
    _, status = _service.nvrtc.compile(empty, options)
    if status:
        raise NvrtcError(f"the precompiled header was not made, status {status}")
    seconds = round(time.perf_counter() - started, 3)
    _, status = _service.nvrtc.compile(empty, options)
    if status != NO_PCH_ATTEMPTED:
        raise NvrtcError(f"the precompiled header is not used again, status {status}")
    _service.prefixes[flavour] = prefix
    return seconds


def _arch_of_this_machine() -> str:
    gpus = visible_gpus()
    if not gpus:
        raise NvrtcError("there is no GPU")
    return gpus[0].arch


def plain(source: str) -> bool:
    """Tell whether nothing but includes stands before tilelang's headers, so that others may come first."""
    before = source.partition("#include <tl_templates/")[0]
    before = re.sub(r"^#if defined\(_MSC_VER\).*?^#endif\n", "", before, flags=re.MULTILINE | re.DOTALL)
    return all(re.match(r"#include <|\s*$", line) for line in before.splitlines())


def compile_here(source: str, flavour: Flavour) -> bytes:
    """Compile `source` in this process, with the precompiled header where it can be used. Raises `NvrtcError`."""
    prefix, options = _service.prefixes.get(flavour), options_for(flavour.arch, flavour.fast_math)
    if prefix is None or not plain(source):
        return _service.nvrtc.compile(STD + source, options)[0]
    return _service.nvrtc.compile(prefix + source, (*options, "-pch"))[0]


def serve(_: bytes) -> NoReturn:
    """Entry point that never returns: fork a child for every request, until this process is killed."""
    signal.signal(signal.SIGCHLD, _reap)
    while True:
        connection, _address = _service.listener.accept()
        try:
            child = os.fork()
        except OSError:  # no memory for it: whoever asked turns to nvcc
            connection.close()
            continue
        if child == 0:
            try:
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                _answer(connection)
            finally:
                os._exit(0)
        connection.close()


def _reap(*_: object) -> None:
    # Waited for, and not ignored: so their CPU time counts as their parents'.
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass


def _answer(connection: socket.socket) -> None:
    request = msgspec.msgpack.decode(_receive(connection), type=Request)
    # Whoever asked may be killed, by its deadline say: then this compile must end too, in the middle of native code.
    fcntl.fcntl(connection, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(connection, _F_SETSIG, signal.SIGKILL)
    flags = fcntl.fcntl(connection, fcntl.F_GETFL)
    fcntl.fcntl(connection, fcntl.F_SETFL, flags | os.O_ASYNC)
    try:
        reply = Reply(cubin=compile_here(request.source, request.flavour))
    except NvrtcError as error:
        reply = Reply(log=str(error))
    fcntl.fcntl(connection, fcntl.F_SETFL, flags)
    _send(connection, msgspec.msgpack.encode(reply))


def compile_remotely(source: str, flavour: Flavour, run_dir: str) -> bytes:
    """Have the service compile `source` and return the cubin. Raises `NvrtcError`, also when the child died."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        with _Folder(run_dir) as folder:
            connection.connect(f"{folder}/{SOCKET}")
        _send(connection, msgspec.msgpack.encode(Request(source, flavour)))
        try:
            reply = msgspec.msgpack.decode(_receive(connection), type=Reply)
        except EOFError:
            raise NvrtcError("NVRTC ended its process") from None
    if reply.log:
        raise NvrtcError(reply.log)
    return reply.cubin


class _Folder:
    """A short path for a folder: a socket's address holds 107 bytes, and a run's folder may lie deep."""

    def __init__(self, path: str) -> None:
        self._fd = os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)

    def __enter__(self) -> str:
        return f"/proc/self/fd/{self._fd}"

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)


def _send(connection: socket.socket, data: bytes) -> None:
    connection.sendall(_SIZE.pack(len(data)) + data)


def _receive(connection: socket.socket) -> bytes:
    (size,) = _SIZE.unpack(_exactly(connection, _SIZE.size))
    return _exactly(connection, size)


def _exactly(connection: socket.socket, size: int) -> bytes:
    parts = bytearray()
    while len(parts) < size:
        part = connection.recv(size - len(parts))
        if not part:
            raise EOFError
        parts += part
    return bytes(parts)
