"""``python -m atune``, and the entry point of the ``atune`` command."""

from __future__ import annotations

import sys

try:
    from atune.frontends.cli.main import main

    if __name__ == "__main__":
        sys.exit(main())
except KeyboardInterrupt:  # Ctrl-C before the command line could install its handlers
    if sys.stderr is not None:
        sys.stderr.write("atune: interrupted\n")
    sys.exit(130)
