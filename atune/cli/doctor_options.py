"""``atune doctor`` and its options."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING, Any

from atune.cli.mistakes import NO_WINNER
from atune.cli.parsing import add_command
from atune.cli.printing import say

if TYPE_CHECKING:
    from atune.system.signals import Interrupts


def add_commands(commands: Any, shown: argparse.ArgumentParser) -> None:
    """Add ``doctor``. `shown` holds the options that all commands share."""
    doctor = add_command(commands, shown, "doctor", _doctor, "Show what this machine can tune and what is missing")
    doctor.add_argument(
        "--calibrate",
        action="store_true",
        help="measure each GPU's peaks, about 1 s each, and keep them for the rooflines of later runs",
    )


def _doctor(arguments: argparse.Namespace, interrupts: Interrupts) -> int:
    import msgspec

    from atune.cli.doctor import can_tune, examine, render

    checks = examine()
    if arguments.calibrate:
        from atune.cli.calibrate import calibrate

        checks += calibrate()
    ready = can_tune(checks)
    if arguments.json:
        say(json.dumps({"ok": ready, "checks": msgspec.to_builtins(checks)}))
    else:
        say(render(checks))
    return 0 if ready else NO_WINNER
