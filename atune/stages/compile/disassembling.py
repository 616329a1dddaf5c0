"""A kernel's instructions, where a disassembler of CUDA's is there: nvdisasm, or cuobjdump with it."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from atune.model.instructions import Instructions, counted
from atune.stages.compile import elf

DEADLINE_S = 60.0
ARGUMENTS = {"nvdisasm": ("--print-code",), "cuobjdump": ("-sass",)}
"""Of each disassembler, in order of preference."""


def instructions_of(library: bytes, symbol: str) -> Instructions | None:
    """Count the instructions of a PrimFunc's kernels in `library`; None where nothing here can disassemble them."""
    for tool in disassemblers():
        for binary in elf.cuda_binaries(library):
            said = _listing(tool, binary)
            if said is not None and (found := counted(said, symbol)) is not None:
                return found
    return None


def disassemblers() -> Iterator[Path]:
    """Yield the disassemblers that are there, in order of preference."""
    for name in ARGUMENTS:
        if found := shutil.which(name, path=os.pathsep.join(folders())):
            yield Path(found)


def folders() -> list[str]:
    """Return where they may be: on the path, beside nvcc, and in the toolkit's folder."""
    nvcc = shutil.which("nvcc")
    found = [os.environ.get("PATH", ""), str(Path(nvcc).resolve().parent) if nvcc else ""]
    found += [str(Path(home, "bin")) for name in ("CUDA_HOME", "CUDA_PATH") if (home := os.environ.get(name))]
    return [folder for folder in (*found, "/usr/local/cuda/bin") if folder]


def _listing(tool: Path, binary: bytes) -> str | None:
    """Return what a disassembler says of a CUDA binary; None where it fails."""
    with tempfile.TemporaryDirectory(prefix="sass-") as folder:
        path = Path(folder, "kernel.cubin")
        try:
            path.write_bytes(elf.whole(binary))
            command = [str(tool), *ARGUMENTS[tool.name], str(path)]
            ended = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=DEADLINE_S)
        except (OSError, ValueError, subprocess.SubprocessError):
            return None
    return ended.stdout if ended.returncode == 0 else None
