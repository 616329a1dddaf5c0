"""``python -m atune``, and the entry point of the ``atune`` command."""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType


def main() -> int:
    """Run the command line of this process and return the exit status."""
    signal.signal(signal.SIGINT, _leave)
    from atune.frontends.cli.main import main as run  # which takes long: Ctrl-C ends it already

    return run()


def _leave(number: int, frame: FrameType | None) -> None:
    """End at once, before the command line has installed its handlers.

    Nothing is open yet. A KeyboardInterrupt can be lost in one of the import system's destructors.
    """
    os.write(2, b"atune: interrupted\n")
    os._exit(130)


if __name__ == "__main__":
    sys.exit(main())
