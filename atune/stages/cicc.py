"""Compile with parsed headers: a worker sends the part of a source that follows the headers to cicc's server.

See `cicc_server` for the server. If cicc cannot compile a source, nvcc compiles it, and the artifact gives the reason.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import hashlib
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from atune.model.artifact import CICC, Artifact, Compared, Failure, Lowered, source_path
from atune.model.candidate import Candidate
from atune.model.device import Target
from atune.stages import cicc_source as wgmma
from atune.stages import elf, tilelang
from atune.stages.cicc_server import (
    FOLDER,
    HEADERS,
    NAME,
    OUTPUT,
    TOOLS,
    CiccError,
    Parsed,
    ask,
    files_of,
    nvcc_command,
    preprocess,
    run_tool,
    tools_of,
)
from atune.stages.cicc_source import Flavour, flavour_of, nvcc_only_reason, parts
from atune.stages.codegen import Blob, Compile, MachineCode, answer, by_nvcc, flags_config
from atune.stages.lowering import digest, lower, toolchain
from atune.stages.session import session
from atune.workers.artifact_store import StateCheck, contents_of, key_in, remember, state_of

CUT = "#pragma atune_cut"
VERSION = 1
"""Increase this number with every change of atune that may make cicc generate different code."""
TILELANG = ("0.1.15",)
"""Versions of tilelang whose headers and compile commands atune knows."""
POLL_S = 0.02
"""Seconds between two checks whether the server is ready."""


def tools_or_reason(target: Target) -> tuple[str, str]:
    """Return a key of the compilers that nvcc runs, and the reason not to use cicc for `target`. One text is empty."""
    if target.kind != "cuda":
        return "", f"cicc compiles only for CUDA, but the target is {target.kind}"
    if tilelang.__version__ not in TILELANG:
        return "", f"cicc is known to work only with tilelang {', '.join(TILELANG)}, not with {tilelang.__version__}"
    if not (shutil.which("gcc") or shutil.which("cc")):
        return "", "cicc's server cannot be built without gcc, which is missing"
    if why := nvcc_only_reason({}):
        return "", why
    with tempfile.TemporaryDirectory() as folder:
        try:
            tools = tools_of(nvcc_command(Flavour(target.arch or "sm_90a"), ()), folder)
        except (CiccError, OSError) as error:
            return "", str(error)[:300]
    commands = [[word.replace(folder, "") for word in call] for call in (tools.preprocess, tools.cicc, tools.ptxas)]
    paths = [shutil.which(command[0], path=tools.environment.get("PATH")) or command[0] for command in commands]
    stats = [(path, os.stat(path).st_size, os.stat(path).st_mtime_ns) for path in paths if os.path.exists(path)]
    return digest((VERSION, toolchain("cuda"), commands, stats)), ""


def with_use(lowered: Lowered) -> Lowered:
    """Add to `lowered` a key of the header parts that its source uses, unless cicc cannot compile the source."""
    if session().target.kind != "cuda" or not lowered.blob:
        return lowered
    blob = msgspec.msgpack.decode(lowered.blob, type=Blob)
    if nvcc_only_reason({**blob.pass_configs, **flags_config(blob.flags)}):
        return lowered
    try:
        includes = parts(blob.source)[0]
    except ValueError:
        return lowered
    instructions = wgmma.uses(blob.source) if f"<{wgmma.WGMMA}>" in includes else frozenset[wgmma.Instruction]()
    if instructions is None:
        return lowered
    flavour = flavour_of(session().target.arch, blob.pass_configs)
    use = digest((flavour, includes, sorted({instruction[:4] for instruction in instructions})))
    return msgspec.structs.replace(lowered, use=use)


def headers_of(artifact: Artifact) -> tuple[tuple[str, ...], str]:
    """Return the header files that the run's server reads for a library's source, and a digest of their contents.
    Raises `CiccError`, `ValueError` and `OSError`."""
    source = Path(source_path(artifact.path, artifact.symbol)).read_text(errors="replace")
    return headers_read(os.path.join(session().run_dir, FOLDER), parts(source)[0])


def with_state(lowered: Lowered, artifact: Artifact) -> Artifact:
    """Return `artifact`, which was built from `lowered`, with its compiler state and its library's key in the store."""
    if artifact.plain:
        return artifact
    try:
        _, headers = headers_of(artifact)
    except (CiccError, ValueError, OSError):
        headers = ""  # no later run has this state
    state = state_of(session().tools, lowered.use, headers)
    return msgspec.structs.replace(artifact, state=state, store_key=key_in(lowered.store_key, state))


@functools.cache
def headers_read(server: str, includes: tuple[str, ...]) -> tuple[tuple[str, ...], str]:
    """Return the files that the server in the folder `server` reads for `includes`, and a digest of these files. Raises
    `CiccError` and `OSError`."""
    parsed, folder = _parsed(os.path.join(server, TOOLS)), os.path.realpath(server)
    read = files_of(Path(folder, HEADERS))
    if more := tuple(name for name in includes if name not in parsed.includes):
        read |= files_of(Path(_more(parsed, more, server)))
    real = set(map(os.path.realpath, read))  # the same file may have several names
    files = tuple(sorted(name for name in real if not name.startswith(f"{folder}/")))
    return files, contents_of(files)


def compile(source: str, pass_configs: Mapping[str, Any]) -> MachineCode:
    """Compile with cicc if cicc can compile the source, and otherwise with nvcc. Raises the errors of nvcc."""
    if reason := nvcc_only_reason(dict(pass_configs)):
        return replace(by_nvcc(source, pass_configs), why=f"nvcc, because {reason}")
    try:
        flavour = flavour_of(session().target.arch, dict(pass_configs))
        code = compile_remotely(source, flavour, session().run_dir)
    except (CiccError, OSError) as error:
        machine_code = by_nvcc(source, pass_configs)  # if nvcc refuses the source as well, it raises the kernel's error
        return replace(machine_code, why=f"nvcc, because cicc did not compile the source: {str(error)[:300]}")
    return MachineCode(code, CICC)


def compile_remotely(source: str, flavour: Flavour, run_dir: str) -> bytes:
    """Let the server that is linked in `run_dir` compile `source`, and return the binary. Raises `CiccError`."""
    parsed = _parsed(os.path.join(run_dir, FOLDER, TOOLS))
    if flavour != parsed.flavour:
        raise CiccError(f"its headers are parsed for {parsed.flavour.arch}, fast_math={parsed.flavour.fast_math}")
    body = _body(source, parsed, os.path.join(run_dir, FOLDER))
    with tempfile.TemporaryDirectory(dir=run_dir, prefix="cicc-") as folder:
        ask(os.path.join(run_dir, FOLDER), body, folder)
        binary = os.path.join(folder, "kernels.cubin")
        run_tool([*parsed.tools.ptxas, os.path.join(folder, OUTPUT), "-o", binary], parsed.tools)
        return Path(binary).read_bytes()


def _more(parsed: Parsed, includes: Sequence[str], server: str) -> str:
    """Preprocess `includes` as if they followed the parsed headers. Return the preprocessed file, which all workers
    share."""
    name = f"more-{hashlib.sha256(repr(includes).encode()).hexdigest()[:16]}"
    path = os.path.join(os.path.realpath(server), f"{name}.ii")
    with open(f"{path}.lock", "wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if os.path.exists(path):
            return path
        lines = "".join(f"#include {name}\n" for name in includes)
        with tempfile.TemporaryDirectory(dir=os.path.dirname(path), prefix="more-") as folder:
            whole, rest = os.path.join(folder, "whole.ii"), os.path.join(folder, "rest.ii")
            preprocess(parsed, f"{parsed.text()}{CUT}\n{lines}", os.path.join(folder, "more.cu"), whole)
            _, cut, after = Path(whole).read_bytes().partition(f"\n{CUT}\n".encode())
            if not cut:
                raise CiccError("the preprocessor drops pragmas")
            Path(rest).write_bytes(after)
            os.replace(rest, path)
    return path


@functools.cache
def _parsed(path: str) -> Parsed:
    try:
        return msgspec.json.decode(Path(path).read_bytes(), type=Parsed)
    except OSError as error:
        raise CiccError(f"cicc's server is not running: {error}") from None


def _body(source: str, parsed: Parsed, server: str) -> str:
    """Return the part of `source` that the server in the folder `server` still has to compile."""
    try:
        includes, rest = parts(source)
    except ValueError as error:
        raise CiccError(f"the source is not in tilelang's form: {error}") from None
    added = ""
    if more := tuple(name for name in includes if name not in parsed.includes):
        # Only tilelang's own headers may come in any order. Other headers may depend on those around them.
        if other := [name for name in more if not name.startswith("<tl_templates/")]:
            raise CiccError(f"the source includes {other[0]}, which the server has not parsed")
        added = f'#include "{_more(parsed, more, server)}"\n'
    if f"<{wgmma.WGMMA}>" in includes:
        where, used = tilelang.paths(), wgmma.uses(source)
        if used is None:
            raise CiccError("the source uses CUTLASS directly")
        if used:
            definitions = wgmma.definitions(where.TILELANG_TEMPLATE_PATH, where.CUTLASS_INCLUDE_DIR, used)
            if not definitions:
                raise CiccError("CUTLASS does not define a wgmma instruction that the source uses")
            added += definitions
    return f'{added}#line 1 "{NAME}"\n{rest}'


# ---- comparing cicc's code with nvcc's: a candidate is compiled again, as tilelang itself compiles it


def compared(candidate: Candidate, built: Artifact, path: str) -> Compared | Failure:
    """Build `candidate` again from its kernel function, but with nvcc, and compare the new library with `built`.

    If this machine is in the compiler state of `built`, the comparison is stored for that state. Raises the errors of
    elaborating and lowering. Returns a `Failure` if a compiler rejects the source.
    """
    lowered = with_use(lower(candidate))
    (plain,) = answer([lowered], path)
    if isinstance(plain, Failure):
        return plain
    differs = difference(built, plain)
    with contextlib.suppress(OSError, CiccError, ValueError):  # without the record, a later run compares again
        files, headers = headers_of(plain)
        if state_of(session().tools, lowered.use, headers) == built.state:
            remember(session().tools, lowered.use, StateCheck(files, headers, differs))
    return Compared(candidate.index, differs)


def comparing(group: Sequence[Lowered]) -> Compile:
    """Return a function that compiles `group` with nvcc, and in the background compares cicc's code with nvcc's code.

    The function does not wait for the comparison, which is stored for each member's compiler state.
    """

    def compile(source: str, pass_configs: Mapping[str, Any]) -> MachineCode:
        plain = Future[bytes]()
        arguments = group, source, flavour_of(session().target.arch, dict(pass_configs)), plain
        threading.Thread(target=_compare, args=arguments, daemon=True).start()
        machine_code = by_nvcc(source, pass_configs)
        plain.set_result(machine_code.code)
        return machine_code

    return compile


def _compare(group: Sequence[Lowered], source: str, flavour: Flavour, plain: Future[bytes]) -> None:
    """Compile `source` with cicc, and store the comparison with nvcc's code. If that fails, a later run compares."""
    server = os.path.join(session().run_dir, FOLDER)
    while not os.path.lexists(server):  # the compile service still parses headers
        time.sleep(POLL_S)
    with contextlib.suppress(OSError, CiccError, ValueError):
        own = compile_remotely(source, flavour, session().run_dir)
        files, headers = headers_read(server, parts(source)[0])
        binaries = [b"\0" + code for code in (own, plain.result())]  # as if each were in a library
        symbols = [msgspec.msgpack.decode(lowered.blob, type=Blob).symbol for lowered in group]
        differ = [_code_difference(*(elf.kernels_code(binary, symbol) for binary in binaries)) for symbol in symbols]
        for use in {lowered.use for lowered in group if lowered.use}:
            remember(session().tools, use, StateCheck(files, headers, max(differ)))


def difference(measured: Artifact, plain: Artifact) -> str:
    """Name the part in which two libraries of a candidate differ; empty if sources and code sections are the same.

    The function compares the sources of device code and of host code. For CUDA, the compiled device code is compared as
    well. For target ``c``, comparing the sources is enough, because g++ compiles both libraries.
    """
    if measured.source_key != plain.source_key:
        return "the generated source"
    if plain.target != "cuda":
        return ""
    return _code_difference(*(elf.kernels_code(Path(a.path).read_bytes(), a.symbol) for a in (measured, plain)))


def _code_difference(own: Sequence[dict[str, bytes]], other: Sequence[dict[str, bytes]]) -> str:
    """Name the part in which two results of `kernels_code` differ; empty if the results are the same."""
    if not other:
        return "no code under the kernel's name in nvcc's library"
    if not own:
        return "no code under the kernel's name in the measured library"
    for code in own:  # if there are several, tvm decides which is loaded
        if code.keys() != other[0].keys():
            return f"sections of its code: {', '.join(sorted(code.keys() ^ other[0].keys()))}"
        if wrong := sorted(name for name in code if code[name] != other[0][name]):
            return f"the code of {', '.join(wrong)}"
    return ""
