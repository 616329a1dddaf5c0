"""Errors about bundles, and manifests. A manifest is plain JSON, with every file's digest to check before loading."""

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
_SIZES = [(int, str)]
_PARAM = {"dtype": str, "shape": (_SIZES, NoneType), "strides": (_SIZES, NoneType)}
_PROBLEM = {
    "problem": dict, "library": str, "symbol": str, "calls": _SIZES, "outputs": [int], "zero": [int], "params": [_PARAM]
}  # fmt: skip
FIELDS = {
    "kernel": str, "target": str, "arch": str, "cpu": {"machine": str, "name": str, "features": [str]},
    "requires": dict, "asks": [str], "problems": [_PROBLEM], "files": dict,
}  # fmt: skip
"""Types of the manifest's fields, except schema and digest. A list gives the type of its items; a tuple lists the
allowed values."""
MOST_FILE_BYTES, MOST_MANIFEST_BYTES = 1 << 30, 16 << 20
"""Largest size of a file in a bundle, and of its manifest, in bytes."""
MANIFEST, RUNTIME = "manifest.json", "runtime"
Sizes = tuple[int | str, ...]


class BundleError(Exception):
    """The base class of errors about bundles. It is raised if the folder is not a bundle that this atune can read."""


class DamagedBundle(BundleError):
    """A file of the bundle is missing, or has changed since the bundle was written. Copy the bundle again."""


class WrongMachine(BundleError):
    """This machine, its device or its packages cannot run the bundle. Follow the message, or tune on this machine."""


class WrongArguments(BundleError, TypeError):
    """No kernel of the bundle takes these arguments, because of their number, device, dtype, layout or dimensions."""


class OutsideProblems(BundleError, LookupError):
    """No problem of the bundle has these sizes. Tune a problem with these sizes, or see `on_miss` of `load`."""


class BundleParam(NamedTuple):
    """A parameter. `shape`: ints, or names of symbolic dimensions; None for a number. `strides`: None if contiguous."""

    dtype: str
    shape: Sizes | None
    strides: Sizes | None


@dataclass(frozen=True)
class BundledKernel:
    """The winner of one problem."""

    problem: Mapping[str, Any]
    library: str
    """SHA-256 of the library."""
    symbol: str
    calls: Sizes
    """For target ``c``: each argument of the C function, as a parameter's position or a symbolic dimension's name."""
    outputs: tuple[int, ...]
    """Positions of the parameters that a call may leave out. They are allocated and returned."""
    zero: tuple[int, ...]
    """Positions of the outputs that are allocated as zeros, and of the inputs that a call sets to zero."""
    params: tuple[BundleParam, ...]

    @property
    def inputs(self) -> tuple[int, ...]:
        """Positions of all parameters except the outputs."""
        return tuple(i for i in range(len(self.params)) if i not in self.outputs)

    def given(self, count: int) -> tuple[int, ...] | None:
        """Return the positions of all parameters or of all inputs, depending on `count`; None for any other number."""
        if count == len(self.params):
            return tuple(range(count))
        return self.inputs if count == len(self.inputs) else None


def named(problem: Mapping[str, Any]) -> str:
    """Return a problem as text, for example ``M=64, N=128``."""
    return ", ".join(f"{name}={value}" for name, value in problem.items()) or "no arguments"


def manifest_digest(plain: Mapping[str, Any]) -> str:
    """Return the SHA-256 of a manifest from which the field ``digest`` is removed."""
    content = {name: value for name, value in plain.items() if name != "digest"}
    return hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def read_manifest(folder: Path) -> tuple[dict[str, Any], tuple[BundledKernel, ...]]:
    """Return the manifest in `folder` and the kernels in it, after comparing every file with its digest.

    Raises `BundleError` or `DamagedBundle`.
    """
    path = folder / MANIFEST
    try:
        plain = json.loads(_content(path, MOST_MANIFEST_BYTES))
    except (FileNotFoundError, NotADirectoryError):
        why = f"it has no {MANIFEST}" if folder.is_dir() else "there is no such folder"
        raise BundleError(f"{folder} is not a bundle: {why}") from None
    except (OSError, ValueError, RecursionError) as error:
        raise DamagedBundle(f"{path} cannot be read: {error}") from error
    if not isinstance(plain, dict) or not isinstance(schema := plain.get("schema"), int):
        raise DamagedBundle(f"{path} is not the manifest of a bundle: it has no schema")
    if schema > MANIFEST_SCHEMA:
        newest = f"this atune reads schemas up to {MANIFEST_SCHEMA}"
        raise BundleError(f"{folder} has schema {schema}, but {newest}: install a newer atune")
    if plain.get("digest") != (actual := manifest_digest(plain)):
        raise DamagedBundle(f"{path} was changed: its SHA-256 is {actual}, but it says {plain.get('digest')}")
    try:
        if wrong := [name for name, kind in FIELDS.items() if not _fits(plain.get(name), kind)]:
            raise ValueError(f"its field {wrong[0]} is missing or has a wrong type")
        built_for = f"{plain['target']} {plain['arch']}"
        if plain["target"] != "c" and not re.fullmatch(r"cuda sm_\d{2,4}[af]?", built_for):
            raise ValueError("its target is not supported")
        if not all(re.fullmatch(r"[\w.-]+", name) and _fits(wanted, str) for name, wanted in plain["requires"].items()):
            raise ValueError("its field requires must have the versions of packages")
        kernels = tuple(map(_kernel, plain["problems"]))
        for name in plain["files"]:
            checked(folder, name, plain["files"])
        for path in (folder / RUNTIME).glob("*.so"):
            if f"{RUNTIME}/{path.name}" not in plain["files"]:
                raise DamagedBundle(f"{path} is not part of the bundle: remove it")
        if not kernels or not all(f"{kernel.library}.so" in plain["files"] for kernel in kernels):
            raise ValueError("it has no problems, or a problem has no library")
    except (TypeError, ValueError) as error:
        raise DamagedBundle(f"{path} is not the manifest of a bundle: {error!r}") from error
    return plain, kernels


def _fits(value: Any, kind: Any) -> bool:
    """Tell whether a JSON value has the type `kind`, which has the form of a type in `FIELDS`."""
    if isinstance(kind, tuple):
        return any(_fits(value, choice) for choice in kind)
    if isinstance(kind, list):
        return type(value) is list and all(_fits(item, kind[0]) for item in value)
    if isinstance(kind, dict):
        return type(value) is dict and all(_fits(value.get(name, ...), of_field) for name, of_field in kind.items())
    return type(value) is kind


def _content(path: Path, most: int) -> bytes:
    """Return the content of a regular file. Raises `OSError` for any other file, as a pipe could block for ever."""
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file", str(path))
        data = file.read(most + 1) or b""
        if len(data) > most:
            raise OSError(errno.EFBIG, f"it is longer than {most >> 20} MiB", str(path))
        return data


def checked(folder: Path, name: str, files: Mapping[str, Any]) -> bytes:
    """Return the content of a bundle's file, after comparing it with its digest in `files`.

    Raises `DamagedBundle` if the digest differs, or `ValueError` if a bundle cannot have a file of this name.
    """
    digest = files[name]
    if not re.fullmatch(rf"(?:{RUNTIME}/)?\w[\w.-]*", name):
        raise ValueError(f"a bundle cannot have a file {name!r}")
    try:
        data = _content(folder / name, MOST_FILE_BYTES)
    except OSError as error:
        why = f"{folder / name}, with SHA-256 {digest}, cannot be read: {error.strerror}"
        raise DamagedBundle(f"{why}; copy the bundle again") from error
    if (actual := hashlib.sha256(data).hexdigest()) != digest:
        raise DamagedBundle(f"{folder / name} is damaged: its SHA-256 is {actual}, not {digest}; copy the bundle again")
    return data


def _kernel(plain: Mapping[str, Any]) -> BundledKernel:
    params = tuple(BundleParam(p["dtype"], _sizes(p["shape"]), _sizes(p["strides"])) for p in plain["params"])
    calls, outputs, zero = tuple(plain["calls"]), tuple(plain["outputs"]), tuple(plain["zero"])
    return BundledKernel(dict(plain["problem"]), plain["library"], plain["symbol"], calls, outputs, zero, params)


def _sizes(plain: Any) -> Sizes | None:
    return None if plain is None else tuple(plain)
