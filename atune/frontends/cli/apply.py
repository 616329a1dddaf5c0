"""``atune apply``: write a winner's values into its kernel's default arguments. The kernel then needs no tuner."""

from __future__ import annotations

import argparse
import difflib
import io
import json
import os
import re
import shlex
import tokenize
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import anyio

from atune.errors import UsageError
from atune.frontends.api.resume import read_state
from atune.frontends.cli.output import print_message, print_out, read_input
from atune.journal.output import write_output
from atune.journal.result import Result
from atune.model.candidate import RESERVED, Config, describe_config, printable, thaw
from atune.workers.local.workload_queries import locate_kernel
from atune.workload.kernel_defaults import Change, KernelSite, Sought, write_defaults
from atune.workload.workload import parse_file_ref

if TYPE_CHECKING:
    from atune.journal.state import State


def apply_command(arguments: argparse.Namespace) -> int:
    """Print the diff and, with ``--write``, apply it. Raises `UsageError` and then leaves the file unchanged."""
    state = read_state(arguments.journal)
    config = _winner(state, arguments.journal)
    ref = parse_file_ref(arguments.kernel, f"atune apply {arguments.journal}")
    data = read_input(ref.path)
    names = {name for entry in state.entries.values() for name in entry.config}
    site = anyio.run(locate_kernel, Sought(ref, tuple(sorted(names))))
    forced = _differences(state, site)
    if forced and not arguments.force:
        lines = "".join(f"\n  {printable(one)}" for one in forced)
        raise UsageError(
            f"{arguments.journal} was tuned for another kernel than {ref.origin}:{lines}\n--force applies it anyway"
        )
    _check_place(site, ref.path, ref.name or site.workload, arguments.journal)
    values = {name: value for name, value in config.items() if name not in RESERVED}
    text, encoding = _decoded(data, ref.path)
    edited, changes = write_defaults(text, site.function, site.line, values)
    if changes:
        print_out(_diff(text, edited, arguments.kernel.rpartition(":")[0] or arguments.kernel))
        if arguments.write:
            if not os.stat(ref.path).st_mode & 0o222:
                raise UsageError(f"{ref.path} is read-only and was not written: make it writable (chmod u+w) first")
            if read_input(ref.path) != data:
                raise UsageError(f"{ref.path} changed during this command and was not written: run the command again")
            write_output(ref.path, edited.encode(encoding), source=True)
    left = {name: value for name, value in config.items() if name in RESERVED and value}
    _print_outcome(arguments, ref.path, changes, left, forced)
    return 0


def _winner(state: State, journal: str) -> Config:
    """Return the configuration that won. Raises `UsageError` if no candidate won."""
    result = Result.of(state, journal, replayed=True)
    if result.best_config is None:
        counts = f"{result.measured} measured, {result.failed} failed, {result.remaining} not tried"
        raise UsageError(f"{journal} has no winner ({counts}): there is nothing to apply")
    if not result.finished:
        print_message(f"the run in {journal} did not finish: this is its best configuration so far", kind="")
    return thaw(result.best_config)


def _differences(state: State, site: KernelSite) -> list[str]:
    """Return the differences between the kernel of a journal and the one at `site`, a sentence each."""
    header = state.header
    assert header is not None, "there is a winner"
    found = []
    if header.kernel != site.kernel:
        found.append("the kernel's source, or what it uses, changed since it was tuned")
    if found and header.workload != site.workload:
        found.append(f"the journal is for {header.workload!r}, and this is {site.workload!r}")
    if site.arguments is not None:
        was, now = thaw(header.arguments), thaw(site.arguments)
        for name in {**was, **now}:
            if was.get(name) != now.get(name):
                found.append(f"{name} was {was.get(name)!r} and is {now.get(name)!r}")
    return found


def _check_place(site: KernelSite, path: str, name: str, journal: str) -> None:
    """Raise `UsageError` unless the kernel is a function defined in the file at `path`."""
    if site.what:
        raise UsageError(f"the kernel of {name} is {site.what} and has no default arguments: define it with def")
    if site.default_in_decorator:
        raise UsageError(f"the default= in the decorator of {name} overrides default arguments: remove it first")
    if not os.path.exists(site.path) or not os.path.samefile(site.path, path):
        command = shlex.join(["atune", "apply", journal, f"{site.path}:{site.function}"])
        there = command if os.path.exists(site.path) else "edit that file"
        raise UsageError(f"the kernel of {name} is defined elsewhere, in {site.path}, line {site.line}: {there}")


def _decoded(data: bytes, path: str) -> tuple[str, str]:
    """Return a Python file's text and its encoding. Line ends stay unchanged."""
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
        return data.decode(encoding), encoding
    except (SyntaxError, UnicodeDecodeError) as error:
        why = f"{path} is not in the encoding that it declares (without a declaration: UTF-8): {error}"
        raise UsageError(f"{why}\nsave it as UTF-8, or declare its encoding in the first line") from error


def _diff(before: str, after: str, path: str) -> str:
    """Return a unified diff that ``patch -p0`` takes."""
    one, other = (
        re.findall(r"[^\n]*\n|[^\n]+", text) for text in (before, after)
    )  # str.splitlines would split at form feeds
    lines = difflib.unified_diff(one, other, path, path)
    whole = "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)
    return whole.removesuffix("\n")


def _print_outcome(
    arguments: argparse.Namespace, path: str, changes: Sequence[Change], left: Config, forced: Sequence[str]
) -> None:
    if not changes:
        print_message(f"{path} already has these defaults", kind="")
    elif arguments.write:
        print_message(f"{path} was written", kind="")
    else:
        print_message("nothing was written: add --write to write it", kind="")
    if left:
        print_message(f"the kernel has no such argument; pass it to @tilelang.jit: {describe_config(left)}", kind="")
    if arguments.json:
        found: dict[str, Any] = {
            "file": path,
            "changes": {change.name: {"from": change.before, "to": change.after} for change in changes},
            "written": bool(changes) and arguments.write,
            "left": left,
            "forced": list(forced),
        }
        print_out(json.dumps(found))
