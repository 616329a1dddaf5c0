"""Compressed journals, read as they are."""

from __future__ import annotations

import gzip
import lzma
import zlib
from collections.abc import Generator
from contextlib import contextmanager
from importlib import import_module
from typing import IO, cast

from atune.errors import JournalError

_KINDS = {b"\xfd7zXZ\x00": "xz", b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd"}
"""The first bytes of each kind of file."""
_ZSTD = ("compression.zstd", "backports.zstd", "pyzstd", "zstandard")
"""Modules that read zstd; the first is Python's own, from 3.14 on."""


class NotWhole(Exception):
    """A compressed file is damaged, or ends too early."""


def kind_of(path: str) -> str:
    """Return how the file at `path` is compressed: ``xz``, ``gzip``, ``zstd``, or empty. Raises `OSError`."""
    with open(path, "rb") as file:
        start = file.read(6)
    return next((kind for magic, kind in _KINDS.items() if start.startswith(magic)), "")


@contextmanager
def unpacked(path: str) -> Generator[IO[bytes], None, None]:
    """Open the file at `path` to read what it holds, unpacked. Raises `OSError`, and while it is read `NotWhole`."""
    kind = kind_of(path)
    with _open(path, kind) as file:
        try:
            yield file
        except (EOFError, lzma.LZMAError, zlib.error, gzip.BadGzipFile) as error:
            raise NotWhole(f"the {kind} file is damaged or ends too early: {error}") from error


def _open(path: str, kind: str) -> IO[bytes]:
    if kind == "xz":
        return lzma.open(path, "rb")
    if kind == "gzip":
        return cast(IO[bytes], gzip.open(path, "rb"))
    return _zstd(path) if kind == "zstd" else open(path, "rb")


def _zstd(path: str) -> IO[bytes]:
    for name in _ZSTD:
        try:
            module = import_module(name)
        except ImportError:
            continue
        file: IO[bytes] = module.open(path, "rb")
        return file
    raise JournalError(f"{path} is compressed by zstd, which this Python does not read: unpack it first (unzstd)")
