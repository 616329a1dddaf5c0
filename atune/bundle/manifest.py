"""A bundle's manifest: plain JSON with the digest of every file, checked before anything is loaded; and its errors."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import NoneType
from typing import Any, NamedTuple

MANIFEST_SCHEMA = 1
"""Version of the manifest."""
_SIZES = [(int, str)]
_PARAM = {"dtype": str, "shape": (_SIZES, NoneType), "strides": (_SIZES, NoneType)}
_PROBLEM = {
    "problem": dict, "library": str, "symbol": str, "calls": _SIZES, "outputs": [int], "zero": [int], "params": [_PARAM]
}  # fmt: skip
FIELDS = {
    "kernel": str, "target": str, "arch": str, "cpu": {"machine": str, "name": str, "features": [str]},
    "requires": dict, "asks": [str], "problems": [_PROBLEM], "files": dict,
}  # fmt: skip
"""Fields that it has beside its schema and digest, and their types: lists of one type, or one of several."""
MOST_FILE_BYTES, MOST_MANIFEST_BYTES = 1 << 30, 16 << 20
"""Most bytes of a file, and of the manifest."""
MANIFEST, RUNTIME = "manifest.json", "runtime"
Sizes = tuple[int | str, ...]


class BundleError(Exception):
    """Root of what a bundle raises. Itself: the folder is no bundle, or this version cannot read it."""


class DamagedBundle(BundleError):
    """A file of the bundle is missing, or is not the file that was written. Copy the bundle again."""


class WrongMachine(BundleError):
    """This machine, its device or its packages cannot run the bundle. Use one as the message says, or tune here."""


class WrongArguments(BundleError, TypeError):
    """No kernel of the bundle takes arguments of this number, device, dtype, layout or number of dimensions."""


class OutsideProblems(BundleError, LookupError):
    """No problem of the bundle has these sizes. Tune it, or see `on_miss` of `load`."""


class BundleParam(NamedTuple):
    """A parameter. `shape`: ints, or names of symbolic dimensions; None for a number. `strides`: None if contiguous."""

    dtype: str
    shape: Sizes | None
    strides: Sizes | None


@dataclass(frozen=True)
class BundledKernel:
    """The winner of one problem."""

    problem: Mapping[str, Any]
    """The arguments that it was tuned for."""
    library: str
    """SHA-256 of its library."""
    symbol: str
    calls: Sizes
    """For target ``c``: each argument of the C function, as a parameter's position or a symbolic dimension's name."""
    outputs: tuple[int, ...]
    """Positions of the parameters that a call may leave out. They are allocated and returned."""
    zero: tuple[int, ...]
    """Positions of outputs that are zero when they are allocated, and of inputs that a call sets to zero."""
    params: tuple[BundleParam, ...]

    @property
    def inputs(self) -> tuple[int, ...]:
        """Positions of the other parameters."""
        return tuple(i for i in range(len(self.params)) if i not in self.outputs)

    def given(self, count: int) -> tuple[int, ...] | None:
        """Return the parameters that a call of `count` arguments gives: all, or the inputs; None for neither."""
        if count == len(self.params):
            return tuple(range(count))
        return self.inputs if count == len(self.inputs) else None


def named(problem: Mapping[str, Any]) -> str:
    """Return a problem as text, such as ``M=64, N=128``."""
    return ", ".join(f"{name}={value}" for name, value in problem.items()) or "no arguments"


def manifest_digest(plain: Mapping[str, Any]) -> str:
    """Return the SHA-256 of a manifest's content, without its own field for it."""
    content = {name: value for name, value in plain.items() if name != "digest"}
    return hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def read_manifest(folder: Path) -> tuple[dict[str, Any], tuple[BundledKernel, ...]]:
    """Return the manifest of `folder`, and its kernels. Compares every file with its digest.

    Raises `BundleError` and `DamagedBundle`.
    """
    path = folder / MANIFEST
    try:
        plain = json.loads(_content(path, MOST_MANIFEST_BYTES))
    except (FileNotFoundError, NotADirectoryError):
        why = f"it has no {MANIFEST}" if folder.is_dir() else "there is no such folder"
        raise BundleError(f"{folder} is no bundle: {why}") from None
    except (OSError, ValueError, RecursionError) as error:
        raise DamagedBundle(f"{path} cannot be read: {error}") from error
    if not isinstance(plain, dict) or not isinstance(schema := plain.get("schema"), int):
        raise DamagedBundle(f"{path} is no bundle's manifest: it has no schema")
    if schema > MANIFEST_SCHEMA:
        newest = f"this atune reads up to {MANIFEST_SCHEMA}"
        raise BundleError(f"{folder} has schema {schema}, and {newest}: install a newer one")
    if plain.get("digest") != (found := manifest_digest(plain)):
        raise DamagedBundle(f"{path} was changed: its SHA-256 is {found}, and it says {plain.get('digest')}")
    try:
        if wrong := [name for name, kind in FIELDS.items() if not _fits(plain.get(name), kind)]:
            raise ValueError(f"it has no {wrong[0]}, or another kind of it")
        built_for = f"{plain['target']} {plain['arch']}"
        if plain["target"] != "c" and not re.fullmatch(r"cuda sm_\d{2,4}[af]?", built_for):
            raise ValueError("its target is none that bundles have")
        if not all(re.fullmatch(r"[\w.-]+", name) and _fits(wanted, str) for name, wanted in plain["requires"].items()):
            raise ValueError("what it requires is no package's version")
        kernels = tuple(map(_kernel, plain["problems"]))
        for name in plain["files"]:
            checked(folder, name, plain["files"])
        for path in (folder / RUNTIME).glob("*.so"):
            if f"{RUNTIME}/{path.name}" not in plain["files"]:
                raise DamagedBundle(f"{path} is no part of the bundle: remove it")
        if not kernels or not all(f"{one.library}.so" in plain["files"] for one in kernels):
            raise ValueError("no problems, or no library of one")
    except (TypeError, ValueError) as error:
        raise DamagedBundle(f"{path} is no bundle's manifest: {error!r}") from error
    return plain, kernels


def _fits(value: Any, kind: Any) -> bool:
    """Tell whether a value of JSON has the type of a field of `FIELDS`."""
    if isinstance(kind, tuple):
        return any(_fits(value, one) for one in kind)
    if isinstance(kind, list):
        return type(value) is list and all(_fits(one, kind[0]) for one in value)
    if isinstance(kind, dict):
        return type(value) is dict and all(_fits(value.get(name, ...), one) for name, one in kind.items())
    return type(value) is kind


def _content(path: Path, most: int) -> bytes:
    """Return the content of a regular file. Raises `OSError` for others, which may have no end or never begin."""
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file", str(path))
        data = file.read(most + 1) or b""
        if len(data) > most:
            raise OSError(errno.EFBIG, f"it is longer than {most >> 20} MiB", str(path))
        return data


def checked(folder: Path, name: str, files: Mapping[str, Any]) -> bytes:
    """Return the content of a bundle's file, of which `files` has the digest.

    Raises `DamagedBundle`, and `ValueError` for a name that no file of a bundle has.
    """
    digest = files[name]
    if not re.fullmatch(rf"(?:{RUNTIME}/)?\w[\w.-]*", name):
        raise ValueError(f"{name!r} is no file of a bundle")
    try:
        data = _content(folder / name, MOST_FILE_BYTES)
    except OSError as error:
        why = f"{folder / name}, with SHA-256 {digest}, cannot be read: {error.strerror}"
        raise DamagedBundle(f"{why}; copy the bundle again") from error
    if (found := hashlib.sha256(data).hexdigest()) != digest:
        raise DamagedBundle(f"{folder / name} is damaged: its SHA-256 is {found}, not {digest}; copy the bundle again")
    return data


def _kernel(plain: Mapping[str, Any]) -> BundledKernel:
    params = tuple(BundleParam(p["dtype"], _sizes(p["shape"]), _sizes(p["strides"])) for p in plain["params"])
    calls, outputs, zero = tuple(plain["calls"]), tuple(plain["outputs"]), tuple(plain["zero"])
    return BundledKernel(dict(plain["problem"]), plain["library"], plain["symbol"], calls, outputs, zero, params)


def _sizes(plain: Any) -> Sizes | None:
    return None if plain is None else tuple(plain)
