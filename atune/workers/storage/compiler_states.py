"""Compiler states in which cicc's code was compared with nvcc's, in the cache folder.

A state is what decides the code beside the source: the compilers (`tools`), what the source uses of the headers (`use`:
arch, fast math, includes, kinds of wgmma), and the contents of the headers that are read.

    states/<digest of tools and use>.json     the latest comparison
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

import msgspec

from atune.model.folders import cache_folder, make_private_folder, whole_file


class StateCheck(msgspec.Struct, frozen=True):
    """How cicc's code differs from nvcc's; `difference` is empty if it does not. `files`: the headers that are read.

    `headers`: the digest of their contents, by which a later run recognises the state.
    """

    files: tuple[str, ...]
    headers: str
    difference: str


def digest(*parts: str) -> str:
    """Return the SHA-256 of `parts`, shortened to 128 bits."""
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]


def contents_of(files: Iterable[str]) -> str:
    """Return the digest of the contents of `files`. Raises `OSError`."""
    return digest(*(f"{file} {hashlib.sha256(Path(file).read_bytes()).hexdigest()}" for file in sorted(files)))


def state_of(tools: str, use: str, headers: str) -> str:
    """Return the key of a compiler state."""
    return digest(tools, use, headers)


def key_in(store_key: str, state: str) -> str:
    """Return the artifact store's key of a library that was built in `state`; nvcc and g++ have none."""
    return digest(store_key, state) if store_key and state else store_key


def remember(tools: str, use: str, comparison: StateCheck) -> None:
    """Keep a comparison. Raises `OSError`."""
    path = _path(tools, use)
    make_private_folder(str(path.parent))
    with whole_file(path) as part:
        Path(part).write_bytes(msgspec.json.encode(comparison))


def recall(tools: str, use: str) -> tuple[str, str] | None:
    """Return the state and the difference of the latest comparison; None if there is none, or a header changed."""
    try:
        found = msgspec.json.decode(_path(tools, use).read_bytes(), type=StateCheck)
        same = contents_of(found.files) == found.headers
    except (OSError, msgspec.MsgspecError):
        return None
    return (state_of(tools, use, found.headers), found.difference) if same else None


def _path(tools: str, use: str) -> Path:
    return cache_folder() / "states" / f"{digest(tools, use)}.json"
