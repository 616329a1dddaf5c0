"""The entry point of the ``atune`` command and of ``python -m atune``."""

from __future__ import annotations

import signal
import sys

from atune.workers.terminal import end_at_once


def main() -> int:
    """Run the command in the arguments of this process, and return the exit status of the command."""
    signal.signal(signal.SIGINT, end_at_once)
    from atune.frontends.cli.main import main as run  # a slow import, during which Ctrl-C must work already

    return run()


if __name__ == "__main__":
    sys.exit(main())
