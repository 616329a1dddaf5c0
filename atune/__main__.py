"""The entry point of the ``atune`` command and of ``python -m atune``."""

from __future__ import annotations

import signal
import sys

from atune.workers.terminal import end_at_once


def main() -> int:
    """Run the command that this process's arguments give, and return its exit status."""
    signal.signal(signal.SIGINT, end_at_once)
    from atune.frontends.cli.main import main as run  # a slow import, during which Ctrl-C must work already

    return run()


if __name__ == "__main__":
    sys.exit(main())
