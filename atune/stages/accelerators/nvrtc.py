"""NVRTC with a precompiled header: one process makes the header, its forks compile with it.

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
import os
import signal
import socket
import struct
import sys
import time
from collections.abc import Sequence
from typing import Any, NoReturn

import msgspec

from atune.stages.compile.device_source import Flavour, HeadersMissing, cuda_headers, plain, tilelang_paths
from atune.system.folders import short_path

PCH_HEAP_BYTES = 1 << 30
"""Address space for the PCH. At NVRTC's own default, 256 MiB, TileLang's headers do not fit, and NVRTC then silently
compiles without it, in twice the time."""
SOCKET = "nvrtc.sock"
NO_PCH_ATTEMPTED = 13
"""NVRTC_ERROR_NO_PCH_CREATE_ATTEMPTED: none was made because one was found."""
_SIZE = struct.Struct("!Q")
_F_SETSIG = 10


STD = "#include <tl_templates/cuda/nvrtc_std.h>\n"
"""What tilelang puts ahead of a source for NVRTC."""
STOP = "#pragma nv_hdrstop\n"
"""Ends what is precompiled, so that whatever follows uses it."""


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


@functools.cache
def options_for(arch: str, fast_math: bool) -> tuple[str, ...]:
    """Return NVRTC's options for nvcc's work as tilelang asks for it. Raises `NvrtcError` where headers are missing."""
    try:
        where, headers = tilelang_paths(), cuda_headers()
    except HeadersMissing as error:
        raise NvrtcError(str(error)) from None
    if headers is None:
        raise NvrtcError("the CUDA headers are not found")
    options = ["-default-device", f"--gpu-architecture={arch}", "--std=c++20"]
    options += [f"-I{where.TILELANG_TEMPLATE_PATH}", f"-I{where.CUTLASS_INCLUDE_DIR}"]
    options += [f"-I{headers}", f"-I{headers}/cccl"]
    return (*options, "--use_fast_math") if fast_math else tuple(options)


class _Service:
    nvrtc: Nvrtc
    listener: socket.socket
    prefixes: dict[Flavour, str]
    """What the precompiled header of each flavour holds."""


_service = _Service()
_service.prefixes = {}


def has_header(flavour: Flavour) -> bool:
    return flavour in _service.prefixes


def make(flavour: Flavour, includes: Sequence[str]) -> float:
    """Make the precompiled header of `flavour`, check that it is used, and return the seconds that making it took.

    `includes`: what it is made of, ``<file>`` each.
    """
    started = time.perf_counter()
    prefix = "".join([STD, *(f"#include {name}\n" for name in includes), STOP])
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


def compile_here(source: str, flavour: Flavour) -> bytes:
    """Compile `source` in this process, with the precompiled header where it can be used. Raises `NvrtcError`."""
    prefix, options = _service.prefixes.get(flavour), options_for(flavour.arch, flavour.fast_math)
    if prefix is None or not plain(source):
        return _service.nvrtc.compile(STD + source, options)[0]
    return _service.nvrtc.compile(prefix + source, (*options, "-pch"))[0]


def listen(folder: str) -> None:
    """Open the socket in `folder`; what connects waits until it is served."""
    _service.listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with short_path(folder) as short:
        _service.listener.bind(f"{short}/{SOCKET}")
    _service.listener.listen(128)


def serve() -> NoReturn:
    """Fork a child for every request to the socket, until this process is killed."""
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
    with contextlib.suppress(BlockingIOError):
        if not connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT):
            return  # killed before it could be told
    try:
        reply = Reply(cubin=compile_here(request.source, request.flavour))
    except NvrtcError as error:
        reply = Reply(log=str(error))
    fcntl.fcntl(connection, fcntl.F_SETFL, flags)
    _send(connection, msgspec.msgpack.encode(reply))


def compile_remotely(source: str, flavour: Flavour, run_dir: str) -> bytes:
    """Have the service compile `source` and return the cubin. Raises `NvrtcError`, also when the child died."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        with short_path(run_dir) as folder:
            connection.connect(f"{folder}/{SOCKET}")
        _send(connection, msgspec.msgpack.encode(Request(source, flavour)))
        try:
            reply = msgspec.msgpack.decode(_receive(connection), type=Reply)
        except EOFError:
            raise NvrtcError("NVRTC ended its process") from None
    if reply.log:
        raise NvrtcError(reply.log)
    return reply.cubin


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
