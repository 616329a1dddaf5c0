"""The parser of commands. This module imports no package that could be missing."""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Sequence
from typing import Any, NoReturn

from atune.errors import UsageError

SHARED = {"--json": "print one JSON object as the last line of stdout", "--debug": "show tracebacks"}
"""Options of all commands."""


class Parser(argparse.ArgumentParser):
    """The parser of a command. Raises `UsageError` for mistakes.

    A command with subcommands prints its help if it gets no argument.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"allow_abbrev": False, "formatter_class": _Formatter, **options})
        self._positionals.title = "arguments"

    def format_help(self) -> str:
        """Return the help, with a short usage line, and with commands before options."""
        self._action_groups.sort(key=lambda group: group is self._optionals)
        self.usage = " ".join([self.prog, *map(_shown, self._get_positional_actions()), "[options]"])
        return super().format_help()

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        """Parse `args`. Raises `UsageError` for arguments that the command does not know."""
        if not args and any(isinstance(action, argparse._SubParsersAction) for action in self._actions):
            self.print_help()
            self.exit()
        parsed, unknown = super().parse_known_args(args, namespace)
        if unknown:
            raise UsageError(self._unknown(unknown))
        return parsed, unknown

    def error(self, message: str) -> NoReturn:
        """Raise `UsageError` with `message` and a pointer to the help."""
        raise UsageError(f"{message} (see {self.prog} --help)")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if isinstance(action, argparse._SubParsersAction) and value not in action.choices:
            from atune.model.options import likely  # imports msgspec, which may be missing

            if re.fullmatch(r".+\.py(:\w*)?|[\w.]+:\w+", value):
                meant = f"{self.prog} tune {shlex.quote(value)}"
                raise UsageError(f"{self.prog} has no command {value}; did you mean {meant}?")
            ways = {name: f"{self.prog} {name}" for name in action.choices}
            hint = likely(value, ways, {}) or f"; the commands are {', '.join(ways)}"
            raise UsageError(f"{self.prog} has no command {value}{hint} (see {self.prog} --help)")
        super()._check_value(action, value)

    def _unknown(self, unknown: Sequence[str]) -> str:
        """Return the message for arguments that the command does not know."""
        from atune.model.options import likely, python_ways  # imports msgspec, which may be missing

        wrong = next((argument for argument in unknown if argument.startswith("-")), None)
        if wrong is None:
            return f"unexpected argument {unknown[0]!r} (see {self.prog} --help)"
        flag = wrong.partition("=")[0]
        no = flag.startswith("--no-")
        actions = [action for action in self._actions if action.option_strings]
        flags = {name: way for action in actions for name, way in _names(action, no).items()}
        ways = {name: f"{way} in Python" for name, way in python_ways().items()} if self.prog == "atune tune" else {}
        hint = likely(name_of(flag).removeprefix("no_"), flags, ways)
        hint = hint or _INSTEAD.get(flag.replace("--without", "--with"), "")
        return f"{self.prog} has no option {flag}{hint} (see {self.prog} --help)"


_INSTEAD = {
    "--execution-backend": "; candidates always run with tvm_ffi: leave the option out",
    "--runs": "; each command tunes once: repeat the command",
    "--with-roller": "; the file defines the space: examples/gemm_roller.py gets it from TileLang's roller",
}
"""Hints for options that TileLang's tuning examples have, but atune does not have."""


class _Formatter(argparse.RawDescriptionHelpFormatter):
    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=26)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        if "\n" in text:  # the text has examples, whose lines must not be filled
            return super()._fill_text(text, width, indent)
        return argparse.HelpFormatter._fill_text(self, text, width, indent)

    def _format_action(self, action: argparse.Action) -> str:
        if not isinstance(action, argparse._SubParsersAction):
            return super()._format_action(action)
        return "".join(map(super()._format_action, action._get_subactions()))  # omits argparse's line for the group


def _shown(action: argparse.Action) -> str:
    """Return the text that the usage line shows for a positional argument."""
    name = str(action.metavar)
    return {"?": f"[{name}]", "*": f"[{name} …]", "+": f"{name} …"}.get(str(action.nargs), name)


def _names(action: argparse.Action, no: bool) -> dict[str, str]:
    """Return the flag for each name of an option. `no`: whether to prefer the flag that switches the option off."""
    flags = action.option_strings
    pair = isinstance(action, argparse.BooleanOptionalAction)
    names = {name_of(flag): flags[-1 if no else 0] if pair else flag for flag in flags}
    return {action.dest: [*names.values()][-1], **names}


def name_of(flag: str) -> str:
    """Return the Python name of the option that a flag sets."""
    return flag.lstrip("-").replace("-", "_")
