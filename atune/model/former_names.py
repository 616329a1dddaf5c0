"""Renamed public names. The former ones still work, with a warning."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from atune.errors import UsageError
from atune.model.notices import warn_caller

RUN = {"force_parts": "accept", "backend": "machine"}
"""Current names of options of a run, by former name."""
AUTOTUNE = {"verify": "check"}
"""Current names of options of `@autotune`, by former name."""
BENCHMARK = {"seed": "input_seed"}
"""Current names of `BenchmarkSettings`, by former name. Journals and keys of results keep the former ones."""
COMMAND_LINE = {"--force-part": "--accept"}
"""Current names of the command line's options, by former name."""


def renamed(where: str, given: Mapping[str, object], former: Mapping[str, str]) -> dict[str, Any]:
    """Return the options `given` under current names, with a DeprecationWarning for each of the `former` ones.

    Raises `UsageError`, naming `where`, for an option that is given under both names.
    """
    options: dict[str, Any] = dict(given)
    for old, new in former.items():
        if old not in options or (old == "backend" and isinstance(options[old], str)):  # a text is tilelang's backend
            continue
        if new in options:
            raise UsageError(f"{where}: {old!r} is the former name of {new!r}; give {new!r} alone")
        warn_former(f"{where}: the option {old!r} is called {new!r} now")
        options[new] = options.pop(old)
    return options


def warn_former(message: str) -> None:
    """Warn of a former name at the line that called atune, where Python shows such warnings by default."""
    warn_caller(message, DeprecationWarning)
