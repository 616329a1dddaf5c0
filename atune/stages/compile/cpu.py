"""Target ``c``: the sources of a group as one source, compiled by g++."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence

from atune.model.settings import CPU_FLAGS
from atune.stages.compile.output import CompileError


def build(sources: Sequence[str], flags: Sequence[str] | None, path: str, verbose: bool) -> None:
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
