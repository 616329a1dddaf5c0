"""``atune server``: start the resident server, look at it, stop it."""

from __future__ import annotations

import argparse
import json
import math
from typing import TYPE_CHECKING, Any

from atune.cli.parsing import add_command
from atune.cli.printing import say
from atune.errors import UsageError

if TYPE_CHECKING:
    from atune.system.signals import Interrupts

OK, NONE = 0, 1
UNITS = {"s": 1, "m": 60, "h": 3600}


def add_commands(commands: Any, shown: argparse.ArgumentParser) -> None:
    """Add ``server`` and its commands. `shown` holds the options that all commands share."""
    text = "Keep tilelang imported between runs, in a server for this user"
    server = commands.add_parser(
        "server", allow_abbrev=False, help=f"{text[0].lower()}{text[1:]}", description=f"{text}."
    )
    inner = server.add_subparsers(title="commands", required=True, metavar="COMMAND")
    for name, command, said in (
        ("start", _start, "Start the resident server; later runs of this user and this Python use it"),
        ("status", _status, "Show whether it runs, fits, and how much memory it takes; exit status 1 if none runs"),
        ("stop", _stop, "Stop it; runs that use it continue"),
    ):
        parser = add_command(inner, shown, name, command, said)
        if name == "start":
            parser.add_argument(
                "--idle", type=_seconds, default=1800.0, metavar="30m", help="end after this time without a run (30m)"
            )


def _start(arguments: argparse.Namespace, interrupts: Interrupts) -> int:
    from atune.local import resident_control

    before = resident_control.status()
    answers = before is not None and "up_s" in before
    if before is not None and answers:
        if not before["misfit"]:
            return _show({**before, "started": False}, f"already running: {_described(before)}", arguments)
        resident_control.stop()
    began = resident_control.start(arguments.idle)
    now = resident_control.status() or {}
    replaced = f" It replaces one that did not fit: {before['misfit']}." if before is not None and answers else ""
    text = f"{_described({**now, **began})} Its imports took {began['seconds']:.1f} s.{replaced}"
    return _show({**now, **began, "started": True}, text, arguments)


def _status(arguments: argparse.Namespace, interrupts: Interrupts) -> int:
    from atune.local import resident_control

    found = resident_control.status()
    if found is None:
        _show({"pid": None}, "no resident server runs; start one with atune server start", arguments)
        return NONE
    return _show(found, _described(found), arguments)


def _stop(arguments: argparse.Namespace, interrupts: Interrupts) -> int:
    from atune.local import resident_control

    pid = resident_control.stop()
    text = "no resident server runs" if pid is None else f"resident server {pid} was stopped; runs that use it continue"
    return _show({"pid": pid}, text, arguments)


def _show(found: dict[str, Any], text: str, arguments: argparse.Namespace) -> int:
    say(json.dumps(found) if arguments.json else text)
    return OK


def _described(found: dict[str, Any]) -> str:
    """Return a server's status as a few sentences."""
    from atune.reporting.progress import duration

    parts = [f"resident server {found['pid']}"]
    if "up_s" in found:
        parts.append(
            f"up for {duration(found['up_s'])}, with {found['sessions']} runs now and {found['served']} before"
        )
        parts.append(f"ends after {duration(found['idle_s'])} without a run")
    if "rss_bytes" in found:
        shared = f", {found['pss_bytes'] / 2**20:.0f} of them its own share" if "pss_bytes" in found else ""
        parts.append(f"{found['rss_bytes'] / 2**20:.0f} MiB of memory{shared}")
    if services := found.get("services"):
        headers = f"{found['services_bytes'] / 2**20:.0f} MiB in {len(services)} compile services with parsed headers"
        parts.append(headers if len(services) > 1 else headers.replace("services", "service"))
    why = f" Programs of this environment do not use it: {found['misfit']}." if found.get("misfit") else ""
    return f"{'; '.join(parts)}.{why}"


def _seconds(text: str) -> float:
    try:
        value = float(text[:-1]) * UNITS[text[-1:]] if text[-1:] in UNITS else float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value > 0):
        raise UsageError(f"--idle {text!r}: give a time such as 90s, 30m or 2h")
    return value
