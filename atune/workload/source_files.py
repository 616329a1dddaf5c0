"""Source texts that a worker has read, and files that were written beside the workload's own."""

from __future__ import annotations

import linecache
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress


def show(texts: Mapping[str, str]) -> None:
    """Make inspect and tracebacks use `texts` as contents of the named files. tilelang reads kernels by inspect."""
    for name, text in texts.items():
        # mtime None marks an entry without a file, which checkcache() keeps.
        linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)


def keep_texts() -> None:
    """Have inspect return the texts that it has read so far, also after their files were edited."""
    for name, entry in linecache.cache.copy().items():
        if len(entry) == 4:
            linecache.cache[name] = (entry[0], None, entry[2], entry[3])


def written_since(when: float, files: Iterable[str]) -> list[str]:
    """Return what was written after `when` in the folders of `files`, and in packages there, except journals."""
    folders = {os.path.dirname(path) for path in files}
    return sorted({path for folder in folders for path in _written(folder, when) if not path.endswith(".jsonl")})


def _written(folder: str, when: float) -> Iterator[str]:
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                if os.path.exists(os.path.join(entry.path, "__init__.py")):
                    yield from _written(entry.path, when)
            elif entry.stat().st_mtime > when:
                yield entry.path
