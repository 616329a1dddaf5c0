"""Location and fingerprints of a kernel, which a worker finds for `atune apply`."""

from __future__ import annotations

import inspect
from collections.abc import Collection
from typing import Any

import msgspec

from atune.errors import WorkloadError
from atune.workload.fingerprint import kernel_fingerprint
from atune.workload.introspect import function_of
from atune.workload.pickling import FileRef, load_named
from atune.workload.workload import Workload


class KernelSite(msgspec.Struct, frozen=True, kw_only=True):
    """A kernel by file, name and first line, as Python compiled it.

    `workload`: the workload's name. `path`: empty if the kernel is not a function. `kernel`: the fingerprint as in
    a journal's header.
    """

    workload: str
    kernel: str
    path: str = ""
    function: str = ""
    line: int = 0
    what: str = ""
    """The kind of kernel, such as a lambda, if it is not a function defined with def."""
    arguments: dict[str, Any] | None = None
    """The problem, if a workload was named."""
    default_in_decorator: bool = False
    """Whether the decorator's ``default=`` overrides the kernel's own."""


class Sought(msgspec.Struct, frozen=True):
    """The kernel to find. `names`: parameters that its space sets, as far as the journal shows."""

    ref: FileRef
    names: tuple[str, ...]


def locate(sought: Sought) -> KernelSite:
    """Load the named object: a `Workload`, a decorated kernel, or a kernel. Raises `WorkloadError`."""
    named = load_named(sought.ref)
    if isinstance(named, Workload):
        site = site_of(named.kernel, named.name, sought.names)
        return msgspec.structs.replace(site, arguments=named.arguments)
    options = getattr(named, "options", None)  # of a kernel under @atune.autotune
    kernel = getattr(named, "kernel", named) if options is not None else named
    if not callable(kernel):
        raise WorkloadError(f"{sought.ref.origin} is a {type(named).__name__}: give a Workload or a kernel")
    chosen: dict[str, Any] = getattr(options, "workload", {})
    site = site_of(kernel, str(chosen.get("name") or getattr(kernel, "__name__", "")), sought.names)
    return msgspec.structs.replace(site, default_in_decorator=chosen.get("default") is not None)


def site_of(kernel: Any, name: str, names: Collection[str]) -> KernelSite:
    """Return the definition of `kernel`. `names` is as for `Sought`."""
    function, digest = function_of(kernel), kernel_fingerprint(kernel, without_defaults=names)
    name = name or str(getattr(function, "__name__", ""))
    function = _taking(function, names)
    if not inspect.isfunction(function):
        return KernelSite(workload=name, kernel=digest, what=f"a {type(function).__qualname__}")
    code = function.__code__
    if code.co_name == "<lambda>":
        return KernelSite(workload=name, kernel=digest, what="a lambda")
    return KernelSite(
        workload=name, kernel=digest, path=code.co_filename, function=code.co_name, line=code.co_firstlineno
    )


def _taking(function: Any, names: Collection[str]) -> Any:
    """Return the function with parameters of those `names` under wrappers that pass all on, as `functools.wraps` marks.

    `function` itself, if there is none.
    """
    found = function
    while not set(names) <= _parameters(found):
        found = getattr(found, "__wrapped__", None)
        if found is None:
            return function
    return found


def _parameters(function: Any) -> set[str]:
    code = getattr(function, "__code__", None)
    return set() if code is None else {*code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]}
