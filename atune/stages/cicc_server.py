"""A server for cicc, the compiler inside nvcc. The server parses headers once, and forks a child for every library.

nvcc preprocesses a source, passes the text to cicc, and passes cicc's PTX to ptxas. Almost all of the time is spent on
headers, so the server preprocesses and parses all headers once. With `cicc_server.c` preloaded, cicc stops where the
kernels begin, and each child that cicc forks continues with other kernels. The code is therefore byte for byte the same
as nvcc's code. (NVRTC's code would differ, because NVRTC keeps addresses of shared memory in 64 bits. If a parsed
header is not included by a library, the header may add one-byte variables to the library.)

The parsed text omits the headers of the C++ library that only host code needs. The text also omits instructions of
Hopper, but each library adds the instructions that it uses (see `cicc_source`). If a library needs anything else that
is omitted, cicc fails, and nvcc compiles the library.
"""

from __future__ import annotations

import functools
import os
import re
import select
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Collection, Sequence
from pathlib import Path

import msgspec

from atune.model.folders import short_path
from atune.stages import tilelang
from atune.stages.cicc_source import (
    GUESS,
    GUESS_BEFORE_HOPPER,
    WGMMA,
    Flavour,
    flavour_of,
    nvcc_only_reason,
    parts,
    without_instructions,
)
from atune.stages.codegen import Blob, flags_config

SERVER = Path(__file__).with_name("cicc_server.c")
BODY, OUTPUT, MESSAGES = "atune_body.cu", "kernels.ptx", "messages"
"""Files in a request's folder: the kernels, the PTX, and cicc's output. `cicc_server.c` repeats the names."""
FOLDER, SOCKET, TOOLS = "cicc", "cicc.sock", "tools.json"
"""File names: the link from a run's folder to a server's folder, the server's socket, and the server's `Parsed`."""
NAME = "tvm_kernels.cu"
"""tilelang's name for a source."""
MAIN, HEADERS, LOG, PRELOADED = "kernels.ii", "headers.ii", "log", "server.so"
"""Files in the server's folder: the source for cicc, the preprocessed headers, cicc's output for the headers, and the
preloaded library."""
_HOST_ONLY = (
    "_BACKWARD_AUTO_PTR_H", "_GLIBCXX_ALGORITHM", "_GLIBCXX_BITS_SPECFUN_H", "_GLIBCXX_FUNCTIONAL", "_GLIBCXX_IOMANIP",
    "_GLIBCXX_IOS", "_GLIBCXX_IOSTREAM", "_GLIBCXX_ISTREAM", "_GLIBCXX_MEMORY", "_GLIBCXX_MUTEX", "_GLIBCXX_OSTREAM",
    "_GLIBCXX_SSTREAM", "_GLIBCXX_STDEXCEPT", "_GLIBCXX_TUPLE", "_GLIBCXX_VECTOR", "_SHARED_PTR_ATOMIC_H",
    "_SHARED_PTR_H", "_STL_UNINITIALIZED_H", "_STREAMBUF_ITERATOR_H", "_STREAM_ITERATOR_H", "_UNIQUE_PTR_H",
    "_USES_ALLOCATOR_ARGS",
)  # fmt: skip
"""Include guards of headers that CUDA and CUTLASS include from the GNU C++ library for host code. Defining the guards
omits the headers, which halves the compile time of a library."""
_FOR_THE_HOST = {
    "--include_file_name", "--module_id_file_name", "--gen_c_file_name", "--stub_file_name", "--gen_device_file_name",
}  # fmt: skip
"""Options of cicc whose values are the names of output files for host code."""
_READ = re.compile(rb'^# \d+ "(/[^"]+)"', re.MULTILINE)
"""A line in which the preprocessor names a file that it reads."""
_EMPTY = 'extern "C" __global__ void atune_empty() {}\n'


class CiccError(Exception):
    """cicc's server has ended, cannot be used, or rejected a source. The message is the reason or cicc's output."""


class Tools(msgspec.Struct, frozen=True):
    """The commands that an nvcc command runs, without file names, and the environment of these commands."""

    preprocess: tuple[str, ...]
    cicc: tuple[str, ...]
    ptxas: tuple[str, ...]
    environment: dict[str, str]


class Parsed(msgspec.Struct, frozen=True):
    """The headers that a server has parsed, as ``<file>``, and the tools that ran."""

    flavour: Flavour
    includes: tuple[str, ...]
    tools: Tools

    def text(self) -> str:
        # <iosfwd> declares the streams of the C++ library; the headers that define them are omitted.
        return "".join(f"#include {name}\n" for name in ("<iosfwd>", *self.includes))


def nvcc_command(flavour: Flavour, folders: Sequence[str]) -> list[str]:
    """Return an nvcc command with the options of ``tilelang_callback_cuda_compile`` for a binary, but no file names."""
    installed = next(filter(None, map(shutil.which, ("g++", "clang++", "c++"))), "g++")
    compiler = os.environ.get("CXX") or os.environ.get("CC") or installed
    command = [tilelang.nvcc(), f"-ccbin={compiler}", "--cubin", "-O3"]
    command += ["-lineinfo", f"-arch={flavour.arch}", "-std=c++20", *(f"-I{folder}" for folder in folders)]
    return [*command, "--use_fast_math"] if flavour.fast_math else command


def tools_of(command: Sequence[str], folder: str) -> Tools:
    """Return the programs that nvcc runs for `command`. Raises `CiccError` if nvcc runs unknown programs."""
    source, output = os.path.join(folder, NAME), os.path.join(folder, "kernels.cubin")
    Path(source).touch()
    dry = [command[0], "--dryrun", *command[1:], "-o", output, source]
    try:
        done = subprocess.run(dry, capture_output=True, text=True, errors="replace", stdin=subprocess.DEVNULL)
    except OSError as error:
        raise CiccError(f"nvcc does not start: {error}") from None
    environment = dict(os.environ)
    calls: dict[str, list[list[str]]] = {"-E": [], "cicc": [], "ptxas": []}
    for text in (line.removeprefix("#$ ") for line in done.stderr.splitlines() if line.startswith("#$ ")):
        if match := re.match(r"([A-Za-z_]+)=(.*)$", text):
            environment[match[1]] = match[2]
            continue
        try:
            words = [re.sub(r"\$(\w+)", lambda m: environment.get(m[1], ""), word) for word in shlex.split(text)]
        except ValueError as error:
            raise CiccError(f"cannot parse a command of nvcc: {error}: {text[:200]}") from None
        kind = "-E" if "-E" in words else os.path.basename(words[0]) if words else ""
        if kind in calls:
            calls[kind].append(words)
    if done.returncode != 0 or any(len(commands) != 1 for commands in calls.values()):
        raise CiccError(f"nvcc calls unknown programs: {done.stderr.strip()[-300:]}")
    (preprocess,), (cicc,), (ptxas,) = calls.values()
    made = [command[command.index("-o") + 1] for command in (preprocess, cicc) if "-o" in command[:-1]]
    if len(made) != 2 or source not in preprocess or made[0] not in cicc or made[1] not in ptxas:
        raise CiccError("nvcc passes files between its programs in an unknown way")
    return Tools(
        _without(preprocess, {source}, {"-o"}),
        _without(cicc, {made[0], "--static-host-stub", "--gen_module_id_file"}, {"-o", *_FOR_THE_HOST}),
        _without(ptxas, {made[1]}, {"-o"}),
        {name: environment[name] for name in ("PATH", "LD_LIBRARY_PATH") if name in environment},
    )


def _without(command: Sequence[str], words: Collection[str], options: Collection[str]) -> tuple[str, ...]:
    """Return `command` without `words`, and without `options` and their values."""
    kept = list[str]()
    rest = iter(command)
    for word in rest:
        if word in options:
            next(rest, None)
        elif word not in words:
            kept.append(word)
    return tuple(kept)


class Server:
    """A cicc process that has parsed `includes` for `flavour`. The constructor may raise `CiccError` or `OSError`.

    `folder`: the folder of the server's files, its socket and `Parsed`. cicc ends no later than the process that
    started it.
    """

    def __init__(self, flavour: Flavour, includes: Sequence[str], folder: str) -> None:
        self.folder, self._began, where = folder, time.time(), tilelang.paths()
        folders = [where.TILELANG_TEMPLATE_PATH, where.CUTLASS_INCLUDE_DIR]
        if f"<{WGMMA}>" in includes:
            without = without_instructions(where.TILELANG_TEMPLATE_PATH, where.CUTLASS_INCLUDE_DIR, folder)
            if without is None:
                raise CiccError("tilelang's headers for Hopper are not a version that atune knows")
            folders.insert(0, without)
        tools = tools_of(nvcc_command(flavour, folders), folder)
        library = os.path.join(folder, PRELOADED)
        gcc = [shutil.which("gcc") or "cc", "-O1", "-w", "-shared", "-fPIC", str(SERVER), "-o", library, "-ldl"]
        run_tool(gcc, tools)
        self.parsed = Parsed(flavour, tuple(dict.fromkeys(includes)), tools)
        self._start()
        Path(folder, TOOLS).write_bytes(msgspec.json.encode(self.parsed))
        self._read = [file for file in files_of(Path(folder, HEADERS)) if not file.startswith(f"{folder}/")]

    def fits(self, flavour: Flavour, includes: Sequence[str]) -> bool:
        """Tell whether this server is alive and has parsed the present contents of the headers that a source includes.
        Raises `OSError` if a header no longer exists."""
        lives = os.path.exists(f"/proc/{self.process.pid}") and max(map(os.path.getctime, self._read)) < self._began
        return lives and flavour == self.parsed.flavour and {*includes} <= {*self.parsed.includes}

    def _start(self) -> None:
        """Start cicc, and wait until it can compile kernels. cicc writes its output into the server's folder."""
        folder, parsed = self.folder, self.parsed
        preprocessed = os.path.join(folder, HEADERS)
        preprocess(parsed, parsed.text(), os.path.join(folder, "headers.cu"), preprocessed)
        Path(folder, MAIN).write_text(f'#include "{preprocessed}"\n#include "{BODY}"\n')
        Path(folder, BODY).touch()
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener, open(f"{folder}/{LOG}", "wb") as output:
            Path(folder, SOCKET).unlink(missing_ok=True)
            with short_path(folder) as short:
                listener.bind(f"{short}/{SOCKET}")
            listener.listen(128)
            self.process = subprocess.Popen(
                [*parsed.tools.cicc, MAIN, "-o", OUTPUT],
                cwd=folder,
                env={
                    **os.environ,
                    **parsed.tools.environment,
                    "LD_PRELOAD": f"./{PRELOADED}",  # relative, because LD_PRELOAD splits paths at spaces
                    "ATUNE_LISTENER": str(listener.fileno()),
                },
                pass_fds=[listener.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )
        # Only cicc holds the socket now: cicc answers, or the client sees that cicc has ended.
        try:
            ptx = ask(folder, _EMPTY, folder)
        except (CiccError, OSError) as error:
            self.kill()
            lines = Path(folder, LOG).read_text(errors="replace").splitlines()
            first = next((line for line in lines if " error" in line), "")
            raise CiccError(f"{error}; {first}" if first else str(error)) from None
        if b".entry atune_empty" not in ptx:
            self.kill()
            raise CiccError("cicc does not compile the source that it is given")

    def link(self, run_dir: str) -> None:
        """Link this server into a run's folder, where workers look for it."""
        os.symlink(self.folder, os.path.join(run_dir, FOLDER))

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


def files_of(preprocessed: Path) -> set[str]:
    """Return the files that the preprocessor read when it wrote the file `preprocessed`."""
    return set(map(os.fsdecode, _READ.findall(preprocessed.read_bytes())))


def includes_for(arch: str) -> tuple[str, ...]:
    """Return the headers to parse before any kernel is known.

    Every child processes all parsed headers, so headers that few kernels need would slow down every compilation.
    """
    hopper = int(re.sub(r"\D", "", arch) or 0) >= 90
    names = (*(GUESS if hopper else GUESS_BEFORE_HOPPER), "copy.h")
    return ("<math_constants.h>", *dict.fromkeys(f"<tl_templates/cuda/{name}>" for name in names))


def preprocess(parsed: Parsed, text: str, source: str, output: str) -> None:
    Path(source).write_text(text, encoding="utf-8")
    left_out = (f"-D{name}=1" for name in _HOST_ONLY)
    run_tool([*parsed.tools.preprocess, "-dD", *left_out, source, "-o", output], parsed.tools)


def run_tool(command: Sequence[str], tools: Tools) -> None:
    """Run one of nvcc's programs, or gcc. If the program fails, raise `CiccError` with the end of its output."""
    environment = {**os.environ, **tools.environment}
    done = subprocess.run(
        command, capture_output=True, text=True, errors="replace", stdin=subprocess.DEVNULL, env=environment
    )
    if done.returncode != 0:
        output = (done.stderr + done.stdout).strip()
        raise CiccError(f"{os.path.basename(command[0])} failed: {output[-300:]}")


def ask(server: str, body: str, folder: str) -> bytes:
    """Let the server in the folder `server` compile `body` in `folder`, and return the PTX. Raises `CiccError`."""
    Path(folder, BODY).write_text(body, encoding="utf-8")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        try:
            with short_path(server) as short:
                connection.connect(f"{short}/{SOCKET}")
            connection.sendall(os.fsencode(os.path.abspath(folder)) + b"\0")
            status = b""
            while part := connection.recv(16):
                status += part
        except (ConnectionResetError, BrokenPipeError):
            status = b""  # the forked process ended before it read the folder
        except OSError as error:
            raise CiccError(f"cicc's server is gone: {error}") from None
    if status != b"\0":
        path = Path(folder, MESSAGES)
        output = path.read_text(errors="replace").strip() if status and path.exists() else "its process ended"
        errors = [line for line in output.splitlines() if "error" in line]
        raise CiccError("cicc failed: " + ("\n".join(errors) or output[-300:]))
    return Path(folder, OUTPUT).read_bytes()


# ---- the compile service: a process of a run that parses headers, and imports neither tilelang nor torch


_servers: list[Server] = []
"""Servers that this process has started, or that the fork server had started before the fork. A server serves every run
whose headers the server has parsed."""


def listen(payload: bytes) -> bytes:
    """Entry point: link a server into a run's folder. msgpack of (blob, arch, folder) → empty, or a failure's reason.

    `blob`: the blob of a lowered candidate. If no server fits the candidate's source, start a server that parses the
    headers of that source.
    """
    data, arch, folder = msgspec.msgpack.decode(payload, type=tuple[bytes, str, str])
    blob = msgspec.msgpack.decode(data, type=Blob)
    flavour = flavour_of(arch, blob.pass_configs)
    try:
        if reason := nvcc_only_reason({**blob.pass_configs, **flags_config(blob.flags)}):
            raise CiccError(reason)
        includes, _ = parts(blob.source)
        server = next((s for s in _servers if s.fits(flavour, includes)), None) or parse(flavour, includes)
        _end_with(server.process.pid)
        server.link(folder)
    except (CiccError, OSError, ValueError) as error:
        return str(error)[:500].encode()
    return b""


@functools.cache
def _end_with(cicc: int) -> None:
    """Make this process end as soon as the process `cicc` ends, because this process is useless without cicc."""
    ended = os.pidfd_open(cicc)

    def wait() -> None:
        select.select([ended], [], [])
        print("cicc ended", file=sys.stderr, flush=True)
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


def parse(flavour: Flavour, includes: Sequence[str] = ()) -> Server:
    """Start a server that has parsed `includes` and the headers that most kernels include. Raises `CiccError` or
    `OSError` if cicc cannot be used."""
    folder = tempfile.mkdtemp(prefix="cicc-")
    try:
        server = Server(flavour, (*includes, *includes_for(flavour.arch)), folder)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    _servers.append(server)
    return server
