"""The library that stands before z3 in compile workers, made and loaded for tests."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import subprocess
from pathlib import Path
from typing import Any

from atune.stages.accelerators import c_library, counting


def z3_folder() -> Path:
    """Return where z3's package lies, which is installed."""
    return Path(next(iter(importlib.util.find_spec("z3").submodule_search_locations or ())))  # type: ignore[union-attr]


def made(folder: Path) -> Any:
    """Return the library, compiled in `folder` with every warning an error, before the z3 of this process."""
    path, z3 = str(folder / "layer.so"), z3_folder()
    strict = ("-Wall", "-Wextra", "-Werror", "-fexceptions", f"-I{z3 / 'include'}")
    subprocess.run([*c_library.command(counting.SOURCES, path), *strict], check=True)
    library = ctypes.CDLL(path)
    assert library.atune_counting_begin(os.fsencode(z3 / "lib" / "libz3.so")) == 1
    return library
