"""A g++ that has tilelang's header for CPU kernels compiled already: reading it is most of the time that g++ takes."""

from __future__ import annotations

import importlib.util
import os
import shlex
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from atune.model.settings import CPU_FLAGS

HEADER = Path("tl_templates") / "cpp" / "common.h"
FLAGS = {"atune": (*CPU_FLAGS, "-fPIC"), "tilelang": ("-fPIC",)}
"""g++ takes a precompiled header only for the flags that it was made with."""


@contextmanager
def compiler(folder: Path) -> Iterator[Path | None]:
    """Give a folder for PATH, with a g++ in it, while the header is compiled beside what else runs.

    Until it is, and for other flags, that g++ reads the header as the real one does. Libraries are the same, byte for
    byte. Gives None where there is no g++ or no tilelang.
    """
    real, tilelang = shutil.which("g++"), importlib.util.find_spec("tilelang")
    if real is None or tilelang is None or tilelang.origin is None:
        yield None
        return
    bin, include = folder / "bin", folder / "include"
    header = include / HEADER
    made = header.with_name(f"{header.name}.gch")
    made.mkdir(parents=True)
    bin.mkdir()
    for file in (Path(tilelang.origin).parent / "src" / HEADER).parent.iterdir():
        (header.parent / file.name).symlink_to(file)
    wrapper = bin / "g++"
    wrapper.write_text(f'#!/bin/sh\nexec {shlex.quote(real)} {shlex.quote(f"-I{include}")} "$@"\n')
    wrapper.chmod(0o755)
    steps = []
    for name, flags in FLAGS.items():
        command = [real, "-std=c++17", *flags, "-x", "c++-header", str(header), "-o", str(folder / name)]
        steps.append(f"{shlex.join(command)} && {shlex.join(['mv', str(folder / name), str(made)])}")
    done = folder / "done"
    steps.append(f"touch {shlex.quote(str(done))}")
    # Not as a child of ours: tests look at what children the program has.
    script = f"({'; '.join(steps)}) > /dev/null 2>&1 &"
    starting = subprocess.Popen(["sh", "-c", script], start_new_session=True)
    starting.wait()
    yield bin
    if not done.exists():
        with suppress(ProcessLookupError):
            os.killpg(starting.pid, signal.SIGKILL)
    shutil.rmtree(folder, ignore_errors=True)
