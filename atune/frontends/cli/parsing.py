"""The parser of a command. It imports no package that could be missing."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from typing import Any, NoReturn

from atune.errors import UsageError

SHARED = {"--json": "print one JSON object as the last line of stdout", "--debug": "show tracebacks"}
"""Options of all commands."""


class Parser(argparse.ArgumentParser):
    """One command's parser. Without any argument, a command that has commands of its own prints its help.

    Raises `UsageError` for mistakes.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"allow_abbrev": False, "formatter_class": _Formatter, **options})
        self._positionals.title = "arguments"

    def format_help(self) -> str:
        """Return the help, with a short usage, and commands before options."""
        self._action_groups.sort(key=lambda group: group is self._optionals)
        self.usage = " ".join([self.prog, *map(_shown, self._get_positional_actions()), "[options]"])
        return super().format_help()

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        """Parse `args`. Raises `UsageError` for what the command does not know."""
        if not args and any(isinstance(one, argparse._SubParsersAction) for one in self._actions):
            self.print_help()
            self.exit()
        parsed, unknown = super().parse_known_args(args, namespace)
        if unknown:
            raise UsageError(self._unknown(unknown))
        return parsed, unknown

    def error(self, message: str) -> NoReturn:
        """Raise `UsageError`."""
        raise UsageError(f"{message} (see {self.prog} --help)")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if isinstance(action, argparse._SubParsersAction) and value not in action.choices:
            from atune.model.options import likely  # it imports msgspec, which --version does without

            if re.fullmatch(r".+\.py(:\w*)?|[\w.]+:\w+", value):
                raise UsageError(f"{self.prog} has no command {value}; did you mean {self.prog} tune {value}?")
            ways = {name: f"{self.prog} {name}" for name in action.choices}
            hint = likely(value, ways, {}) or f"; there is {', '.join(ways)}"
            raise UsageError(f"{self.prog} has no command {value}{hint} (see {self.prog} --help)")
        super()._check_value(action, value)

    def _unknown(self, unknown: Sequence[str]) -> str:
        """Return the message for arguments that the command does not know."""
        from atune.model.options import likely, python_ways  # as above

        wrong = next((one for one in unknown if one.startswith("-")), None)
        if wrong is None:
            return f"unexpected argument {unknown[0]!r} (see {self.prog} --help)"
        flag = wrong.partition("=")[0]
        no = flag.startswith("--no-")
        flags = {name: way for one in self._actions if one.option_strings for name, way in _names(one, no).items()}
        ways = {name: f"{way} in Python" for name, way in python_ways().items()} if self.prog == "atune tune" else {}
        hint = likely(name_of(flag).removeprefix("no_"), flags, ways)
        hint = hint or _INSTEAD.get(flag.replace("--without", "--with"), "")
        return f"{self.prog} has no option {flag}{hint} (see {self.prog} --help)"


_INSTEAD = {
    "--execution-backend": "; candidates always run by tvm_ffi: leave it out",
    "--runs": "; a command tunes once: repeat it",
    "--with-roller": "; the file gives the space: examples/gemm_roller.py asks TileLang's roller for it",
}
"""Alternatives to options that TileLang's examples of its tuner have, and that name nothing here."""


class _Formatter(argparse.RawDescriptionHelpFormatter):
    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=26)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        if "\n" in text:  # examples
            return super()._fill_text(text, width, indent)
        return argparse.HelpFormatter._fill_text(self, text, width, indent)

    def _format_action(self, action: argparse.Action) -> str:
        if not isinstance(action, argparse._SubParsersAction):
            return super()._format_action(action)
        return "".join(map(super()._format_action, action._get_subactions()))  # without a line for all of them


def _shown(action: argparse.Action) -> str:
    """Return a positional argument as the usage shows it."""
    name = str(action.metavar)
    return {"?": f"[{name}]", "*": f"[{name} …]", "+": f"{name} …"}.get(str(action.nargs), name)


def _names(action: argparse.Action, no: bool) -> dict[str, str]:
    """Return the names by which an option may be meant, and how to write it. `no`: to switch it off."""
    flags = action.option_strings
    pair = isinstance(action, argparse.BooleanOptionalAction)
    names = {name_of(flag): flags[-1 if no else 0] if pair else flag for flag in flags}
    return {action.dest: [*names.values()][-1], **names}


def name_of(flag: str) -> str:
    """Return the name of an option as Python writes it."""
    return flag.lstrip("-").replace("-", "_")
