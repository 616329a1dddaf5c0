"""NVRTC with a precompiled header, as a compile service: one process makes the header, its forks compile with it.

nvcc parses the same megabytes of headers for every library. NVRTC can keep that parse (its PCH), but only within a
process, and it never frees what a compile took. So one process makes the header, then listens; for every request it
forks a child, which inherits the header, compiles, answers and ends.
"""

from __future__ import annotations

import ctypes
import fcntl
import functools
import glob
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
from atune.stages.session import session

PCH_HEAP_BYTES = 1 << 30
"""Address space for the PCH. At NVRTC's own default, 256 MiB, TileLang's headers do not fit, and NVRTC then silently
compiles without it, in twice the time."""
SOCKET = "nvrtc.sock"
NO_PCH_ATTEMPTED = 13
"""NVRTC_ERROR_NO_PCH_CREATE_ATTEMPTED: none was made because one was found."""
_SIZE = struct.Struct("!Q")
_F_SETSIG = 10


class Request(msgspec.Struct, frozen=True):
    source: str
    options: tuple[str, ...]


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
        """Return the cubin and the status of making a PCH. Raises `NvrtcError` with the compiler's log."""
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
    from tilelang.env import CUDA_HOME

    candidates = [f for p in sys.path if p for f in sorted(glob.glob(f"{p}/nvidia/*/lib/libnvrtc.so.*"))]
    candidates += sorted(glob.glob(f"{CUDA_HOME}/lib64/libnvrtc.so.*")) if CUDA_HOME else []
    for path in [*candidates, "libnvrtc.so.13", "libnvrtc.so.12"]:
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


def options_for(arch: str, pass_configs: dict[str, Any]) -> tuple[str, ...] | None:
    """Return NVRTC's options for nvcc's work as tilelang asks for it; None where only nvcc can do it."""
    from tilelang.env import CUTLASS_INCLUDE_DIR, TILELANG_TEMPLATE_PATH

    if any(os.environ.get(name) for name in ("NVCC_APPEND_FLAGS", "NVCC_PREPEND_FLAGS")):
        return None
    if pass_configs.get("tl.device_compile_flags") or pass_configs.get("tl.ptxas_register_usage_level") is not None:
        return None
    options = ["-default-device", f"--gpu-architecture={arch}", "--std=c++20", "-pch"]
    options += [f"-I{TILELANG_TEMPLATE_PATH}", f"-I{CUTLASS_INCLUDE_DIR}"]
    headers = cuda_headers()
    if headers is None:
        return None
    options += [f"-I{headers}", f"-I{headers}/cccl"]
    if pass_configs.get("tl.enable_fast_math"):
        options.append("--use_fast_math")
    return tuple(options)


@functools.cache
def cuda_headers() -> str | None:
    """Return the CUDA toolkit's include folder, which nvcc knows by itself and NVRTC does not."""
    from tilelang.contrib.nvcc import get_nvcc_compiler
    from tilelang.env import CUDA_HOME

    def toolkits() -> Iterator[str]:
        yield from (CUDA_HOME, os.environ.get("CUDA_HOME", ""), os.environ.get("CUDA_PATH", ""))
        nvcc = get_nvcc_compiler()
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


def prelude(source: str) -> str:
    """Return `source` with the include that tilelang puts ahead of it for NVRTC."""
    return f"#include <tl_templates/cuda/nvrtc_std.h>\n{source}"


class _Service:
    nvrtc: Nvrtc
    listener: socket.socket


_service = _Service()


def prepare(payload: bytes) -> bytes:
    """Entry point: msgpack of a lowered candidate's (blob, index) → `NvrtcReady`: the header made, the socket open.

    The candidate's own code costs little; its headers are those that all will be compiled with.
    """
    blob = msgspec.msgpack.decode(msgspec.msgpack.decode(payload, type=tuple[bytes, int])[0], type=Blob)
    source, run_dir = prelude(blob.source), session().run_dir
    started = time.perf_counter()
    try:
        options = options_for(session().target.arch, {**blob.pass_configs, **flags_config(session().compile.flags)})
        if options is None:
            raise NvrtcError("compile flags are for nvcc, or the CUDA headers are not found")
        _service.nvrtc = Nvrtc()
        _, status = _service.nvrtc.compile(source, options)
        if status:
            raise NvrtcError(f"the precompiled header was not made, status {status}")
        again = time.perf_counter()
        _, status = _service.nvrtc.compile(source, options)
        if status != NO_PCH_ATTEMPTED:
            raise NvrtcError(f"the precompiled header is not used again, status {status}")
    except NvrtcError as error:
        return msgspec.msgpack.encode(NvrtcReady(False, str(error)[:500]))
    _service.listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with _Folder(run_dir) as folder:
        _service.listener.bind(f"{folder}/{SOCKET}")
    _service.listener.listen(128)
    now = time.perf_counter()
    return msgspec.msgpack.encode(NvrtcReady(True, "", round(again - started, 3), round(now - again, 3)))


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
        cubin, _status = _service.nvrtc.compile(request.source, request.options)
        reply = Reply(cubin=cubin)
    except NvrtcError as error:
        reply = Reply(log=str(error))
    fcntl.fcntl(connection, fcntl.F_SETFL, flags)
    _send(connection, msgspec.msgpack.encode(reply))


def compile_remotely(source: str, options: tuple[str, ...], run_dir: str) -> bytes:
    """Have the service compile `source` and return the cubin. Raises `NvrtcError`, also when the child died."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        with _Folder(run_dir) as folder:
            connection.connect(f"{folder}/{SOCKET}")
        _send(connection, msgspec.msgpack.encode(Request(source, options)))
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
