"""``atune cache``: list, clear and export the results of tunings. Runs no code of a workload."""

from __future__ import annotations

import argparse
import json
import time
from typing import TYPE_CHECKING, Any

from atune.frontends.cli.help import Parser
from atune.frontends.cli.output import print_bytes, print_message, print_out
from atune.frontends.cli.parsing import add_command
from atune.journal.output import write_output

if TYPE_CHECKING:
    from atune.workers.storage.result_cache import ResultCache
    from atune.workers.storage.result_key import CacheEntry, ResultKey
    from atune.workers.system.terminal import Interrupts


def add_commands(commands: Any, shown: Parser) -> None:
    """Add ``cache`` and its commands. `shown` holds the options that all commands share."""
    text = "List, clear or export the results of tunings"
    cache = commands.add_parser("cache", help=f"{text[0].lower()}{text[1:]}", description=f"{text}.")
    inner = cache.add_subparsers(title="commands", required=True, metavar="COMMAND")

    def add(name: str, command: Any, text: str) -> Parser:
        parser = add_command(inner, shown, name, command, text)
        parser.add_argument("--folder", metavar="DIR", help="the cache's folder [default: the user's]")
        return parser

    def choose(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--kernel", metavar="NAME", help="only results of kernels with this name")
        parser.add_argument("--key", metavar="KEY", help="only results whose key begins with this")

    choose(add("ls", _ls, "List the results, newest first"))
    choose(add("clear", _clear, "Remove results and their measurements; all of them without --kernel or --key"))
    export = add("export", _export, "Write results as JSON, to ship them")
    choose(export)
    export.add_argument("-o", "--output", metavar="FILE", help="where [default: stdout]")


def _cache(arguments: argparse.Namespace) -> ResultCache:
    from atune.workers.storage.result_cache import ResultCache

    return ResultCache(arguments.folder)


def _ls(arguments: argparse.Namespace, interrupts: Interrupts) -> int:
    entries = _cache(arguments).entries(kernel=arguments.kernel, key=arguments.key)
    if arguments.json:
        print_out(json.dumps({"results": [_plain(entry) for entry in entries]}))
        return 0
    from atune.model.candidate import describe_config, printable
    from atune.reporting.export import aligned

    rows: list[tuple[str, ...]] = [("key", "kernel", "problem", "device", "latency ms", "config")]
    for entry in entries:
        latency = "-" if entry.latency_ms is None else f"{entry.latency_ms:.4g}"
        named = entry.parts.kernel, _problem(entry.parts), entry.parts.device
        rows.append((entry.key[:12], *map(printable, named), latency, describe_config(entry.config)))
    if not entries:
        print_out("no results")
        return 0
    print_out(aligned(rows))
    return 0


def _clear(arguments: argparse.Namespace, interrupts: Interrupts) -> int:
    removed = _cache(arguments).clear(kernel=arguments.kernel, key=arguments.key)
    print_out(json.dumps({"removed": removed}) if arguments.json else f"{_results(removed)} removed")
    return 0


def _export(arguments: argparse.Namespace, interrupts: Interrupts) -> int:
    cache = _cache(arguments)
    data = cache.export(kernel=arguments.kernel, key=arguments.key)
    if arguments.output is None:
        print_bytes(data + b"\n")
        return 0
    write_output(arguments.output, data + b"\n", private=False)
    count = len(cache.entries(kernel=arguments.kernel, key=arguments.key))
    if arguments.json:
        print_out(json.dumps({"exported": count, "file": arguments.output}))
    else:
        print_message(f"{_results(count)} exported to {arguments.output}", kind="")
    return 0


def _results(count: int) -> str:
    return f"{count} result{'s' * (count != 1)}"


def _plain(entry: CacheEntry) -> dict[str, Any]:
    """Return an entry as ``--json`` prints it."""
    import msgspec

    parts = msgspec.to_builtins(entry.parts)
    return {
        "key": entry.key,
        "kernel": parts.pop("kernel"),
        "config": msgspec.to_builtins(entry.config),
        "latency_ms": entry.latency_ms,
        "reference_ms": entry.reference_ms,
        "created": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(entry.created)),
        **parts,
    }


def _problem(parts: ResultKey) -> str:
    """Return the problem's key as text, with the sizes that it leaves open and that were tuned."""
    from atune.workers.storage.result_key import open_sizes

    text, tuned = _text(parts.problem) or "no arguments", open_sizes(parts.problem, parts.tuned_for)
    return f"{text} (tuned for {_text(tuned)})" if tuned else text


def _text(value: Any) -> str:
    """Return a value as text; a dict as arguments by name, such as ``M=64, dtype=float32``."""
    if isinstance(value, dict) and len(value) == 1 and (name := next(iter(value))).startswith("$"):
        return str(value[name])  # a dtype, or what else JSON has no word for
    if isinstance(value, dict):
        return ", ".join(f"{name}={_text(item)}" for name, item in value.items())
    return "none" if value is None else value if isinstance(value, str) else repr(value)
