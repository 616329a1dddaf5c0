"""A bundle's manifest: plain JSON with the digest of every file, checked before anything is loaded."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from atune.bundle.errors import BundleError, DamagedBundle

SCHEMA = 1
"""Version of the manifest."""
FIELDS = frozenset({"kernel", "target", "arch", "cpu", "requires", "versions", "rule", "problems", "files"})
"""Fields that it has beside its schema and digest."""
MANIFEST, RUNTIME = "manifest.json", "runtime"
Sizes = tuple[int | str, ...]


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


class Rule(NamedTuple):
    """Which kernels serve problems that were never tuned, but whose sizes lie within those that were.

    `others`: arguments that must be equal. `sizes`: the least and the most of each. `root`: the positions of problems,
    the nearest of which serves, or a `Question`.
    """

    others: Mapping[str, Any]
    sizes: Mapping[str, tuple[float, float]]
    root: Question | tuple[int, ...]

    def serving(self, call: Mapping[str, Any]) -> tuple[int, ...]:
        """Return the positions of the problems that may serve a call; none if it is outside of the rule.

        `call`: what is known of its problem. An argument that is not, such as the size of a dimension that all kernels
        have fixed, must be the same in all problems.
        """
        for name, (least, most) in self.sizes.items():
            size = call.get(name, math.inf if least < most else least)
            if isinstance(size, str) or not least <= size <= most:
                return ()
        if any(call.get(name, value) != value for name, value in self.others.items()):
            return ()
        node = self.root
        while isinstance(node, Question):
            node = node.small if call.get(node.size, self.sizes[node.size][0]) <= node.most else node.large
        return node


class Question(NamedTuple):
    """Where a tree asks for the size `size`: up to `most` goes to `small`, more to `large`."""

    size: str
    most: float
    small: Question | tuple[int, ...]
    large: Question | tuple[int, ...]


class Manifest(NamedTuple):
    """A manifest that was read. `plain`: its content. `kernels`: one for each problem, in order."""

    plain: dict[str, Any]
    kernels: tuple[BundledKernel, ...]
    rules: tuple[Rule, ...]


def named(problem: Mapping[str, Any]) -> str:
    """Return a problem as text, such as ``M=64, N=128``."""
    return ", ".join(f"{name}={value}" for name, value in problem.items()) or "no arguments"


def manifest_digest(plain: Mapping[str, Any]) -> str:
    """Return the SHA-256 of a manifest's content, without its own field for it."""
    content = {name: value for name, value in plain.items() if name != "digest"}
    return hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def read_manifest(folder: Path) -> Manifest:
    """Return the manifest of `folder`, after a comparison of every file with its digest.

    Raises `BundleError` and `DamagedBundle`.
    """
    path = folder / MANIFEST
    try:
        plain = json.loads(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        raise BundleError(f"{folder} is no bundle: it has no {MANIFEST}") from None
    except (OSError, ValueError) as error:
        raise DamagedBundle(f"{path} cannot be read: {error}") from error
    if not isinstance(plain, dict) or not isinstance(schema := plain.get("schema"), int):
        raise DamagedBundle(f"{path} is no bundle's manifest: it has no schema")
    if schema > SCHEMA:
        raise BundleError(f"{folder} has schema {schema}, and this atune reads up to {SCHEMA}: install a newer one")
    if plain.get("digest") != (found := manifest_digest(plain)):
        raise DamagedBundle(f"{path} was changed: its SHA-256 is {found}, and it says {plain.get('digest')}")
    try:
        if lacking := sorted(FIELDS - plain.keys()):
            raise ValueError(f"it has no {lacking[0]}")
        kernels = tuple(map(_kernel, plain["problems"]))
        rules = tuple(_rule(rule, len(kernels)) for rule in plain["rule"] or ())
        for name, digest in plain["files"].items():
            _check_file(folder, name, digest)
        for path in (folder / RUNTIME).glob("*.so"):
            if f"{RUNTIME}/{path.name}" not in plain["files"]:
                raise DamagedBundle(f"{path} is no part of the bundle: remove it")
        if not kernels or not all(f"{kernel.library}.so" in plain["files"] for kernel in kernels):
            raise ValueError("no problems, or no library of one")
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise DamagedBundle(f"{path} is no bundle's manifest: {error!r}") from error
    return Manifest(plain, kernels, rules)


def _check_file(folder: Path, name: str, digest: str) -> None:
    if not re.fullmatch(rf"(?:{RUNTIME}/)?\w[\w.-]*", name):
        raise ValueError(f"{name!r} is no file of a bundle")
    try:
        found = hashlib.sha256((folder / name).read_bytes()).hexdigest()
    except OSError as error:
        why = f"{folder / name}, with SHA-256 {digest}, cannot be read: {error.strerror}"
        raise DamagedBundle(f"{why}; copy the bundle again") from error
    if found != digest:
        raise DamagedBundle(f"{folder / name} is damaged: its SHA-256 is {found}, not {digest}; copy the bundle again")


def _kernel(plain: Mapping[str, Any]) -> BundledKernel:
    params = tuple(BundleParam(p["dtype"], _sizes(p["shape"]), _sizes(p["strides"])) for p in plain["params"])
    calls, outputs, zero = tuple(plain["calls"]), tuple(plain["outputs"]), tuple(plain.get("zero", ()))
    if not all(0 <= i < len(params) for i in (*outputs, *zero, *(c for c in calls if isinstance(c, int)))):
        raise ValueError("a position that no parameter has")
    return BundledKernel(dict(plain["problem"]), plain["library"], plain["symbol"], calls, outputs, zero, params)


def _rule(plain: Mapping[str, Any], count: int) -> Rule:
    sizes = {name: (least, most) for name, (least, most) in plain["sizes"].items()}
    return Rule(dict(plain["others"]), sizes, _node(plain["root"], sizes, count))


def _node(plain: Mapping[str, Any], sizes: Mapping[str, Any], count: int) -> Question | tuple[int, ...]:
    if "problems" in plain:
        if not all(0 <= i < count for i in plain["problems"]):
            raise ValueError("a rule for a problem that is not there")
        return tuple(plain["problems"])
    if plain["size"] not in sizes:
        raise ValueError("a rule that asks for no size")
    small, large = (_node(plain[side], sizes, count) for side in ("small", "large"))
    return Question(plain["size"], plain["most"], small, large)


def _sizes(plain: Any) -> Sizes | None:
    return None if plain is None else tuple(plain)
