"""The parser of a command: short and whole help, what a wrong word may have meant, and values that shells complete."""

from __future__ import annotations

import argparse
import importlib
import re
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, NoReturn

from atune.errors import UsageError

if TYPE_CHECKING:
    from atune.model.options import Option

SHARED = {"--json": "print one JSON object as the last line of stdout", "--debug": "show tracebacks"}
"""Options of all commands."""
NAMES = "atune runs --names"
"""The command that a shell asks for the words that stand for a journal."""
_COMMANDS_MEANT = {
    "list": ("runs", "ls"), "ls": ("runs",), "journals": ("runs",), "history": ("runs",), "log": ("runs",),
    "run": ("tune",), "autotune": ("tune",), "continue": ("resume",), "html": ("report",), "plot": ("report",),
    "rm": ("clear",), "delete": ("clear",), "csv": ("export",), "check": ("doctor",), "diff": ("compare",),
}  # fmt: skip
"""atune's commands for those of other tools."""


class Parser(argparse.ArgumentParser):
    """One command's parser. Its help leaves out the options that are not common; ``--help-all`` shows all.

    Without any argument, a command that has commands of its own prints its help. Raises `UsageError` for mistakes.
    """

    def __init__(self, **options: Any) -> None:
        options = {"allow_abbrev": False, "formatter_class": _Formatter, **options}
        super().__init__(**options)
        self._positionals.title = "arguments"
        self.short = False
        """Whether its help shows the common options alone. It has many, and Python has more."""
        self._rare: list[argparse.Action] = []
        self.values: dict[str, tuple[str, ...]] = {}
        """Values that a shell completes, by the argument's name."""

    def note(self, action: argparse.Action, option: Option) -> None:
        """Note what the help and the shell need to know of `action`, which is `option`."""
        if self.short and not option.common:
            self._rare.append(action)
        self.values[action.dest] = option.values

    def add_help_options(self, group: Any, rare: Iterable[argparse.Action] = ()) -> None:
        """Add ``--help`` to `group`, and ``--help-all``, which also shows `rare` and what else is not common."""
        self._rare += rare
        group.add_argument("-h", "--help", action="help", help="show the common options")
        count = sum(any(one.startswith("--") for one in action.option_strings) for action in self._actions) + 1
        group.add_argument("--help-all", action=_HelpAll, nargs=0, help=f"show all {count} options")

    def show_rare(self) -> None:
        """Show every option in the help from now on."""
        self._rare.clear()

    def format_help(self) -> str:
        """Return the help, with the common options alone."""
        texts = [(action, action.help) for action in self._rare]
        for action, _ in texts:
            action.help = argparse.SUPPRESS
        self._action_groups.sort(key=lambda group: group is self._optionals)  # commands come before it
        for group in self._action_groups:
            group._group_actions.sort(key=lambda action: _LAST.find(f"--{action.dest.replace('_', '-')} "))
        usage, self.usage = self.usage, " ".join([self.prog, *map(_shown, self._get_positional_actions()), "[options]"])
        try:
            return super().format_help()
        finally:
            self.usage = usage
            for action, text in texts:
                action.help = text

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        """Parse `args`. Raises `UsageError` for what the command does not know."""
        if not args and self._commands() is not None:
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
            known = list(action.choices)
            if re.fullmatch(r".+\.py(:\w*)?", value):
                raise UsageError(f"{self.prog} has no command {value}; did you mean {self.prog} tune {value}?")
            near = [name for name in _COMMANDS_MEANT.get(value, ()) if name in known]
            near = near or get_close_matches(value.lower(), known, n=1)
            meant = f"; did you mean {self.prog} {near[0]}?" if near else f"; there is {', '.join(known)}"
            raise UsageError(f"{self.prog} has no command {value}{meant} (see {self.prog} --help)")
        super()._check_value(action, value)

    def _unknown(self, unknown: Sequence[str]) -> str:
        """Return the message for arguments that the command does not know."""
        from atune.model.options import likely, python_ways

        wrong = next((one for one in unknown if one.startswith("-")), None)
        if wrong is None:
            return f"unexpected argument {unknown[0]!r} (see {self.prog} --help)"
        flag = wrong.partition("=")[0]
        flags = {name: one.option_strings[-1] for one in self._actions if one.option_strings for name in _names(one)}
        ways = {name: f"{way} in Python" for name, way in python_ways().items()} if self.short else {}
        meant = likely(flag.lstrip("-").removeprefix("no-").replace("-", "_"), flags, ways)
        hint = f"; did you mean {' or '.join(meant)}?" if meant else ""
        return f"{self.prog} has no option {flag}{hint} (see {self.prog} --help{'-all' * bool(self._rare)})"

    def _commands(self) -> argparse._SubParsersAction[Parser] | None:
        return next((one for one in self._actions if isinstance(one, argparse._SubParsersAction)), None)

    def offer_values(self) -> None:
        """Tell shtab which values each argument completes, for this command and all of its commands."""
        shtab = importlib.import_module("shtab")
        for action in self._actions:
            if isinstance(action, argparse._SubParsersAction):
                for parser in action.choices.values():
                    parser.offer_values()
            elif values := self.values.get(action.dest):
                action.choices = values
            elif str(action.metavar).endswith("J"):
                action.complete = _journals(shtab)  # type: ignore[attr-defined]
            elif "FILE.py" in str(action.metavar):
                action.complete = shtab.glob("*.py")  # type: ignore[attr-defined]
            elif str(action.metavar) in ("FILE", "DIR"):
                action.complete = shtab.FILE  # type: ignore[attr-defined]


def _journals(shtab: Any) -> dict[str, Any]:
    """Return what completes a journal: the words of ``atune runs``, and files. tcsh and powershell take files alone."""
    ask = f"{NAMES} 2>/dev/null"
    words, files = shtab.cmd(ask), shtab.FILE
    bash = f'_atune_journal_files() {{ {words["bash"]} "$1"; {files["bash"]} "$1"; }}'
    zsh = f"_atune_journals() {{ _alternative 'runs:run:($({ask}))' 'files:file:{files['zsh']}' }}"
    return {
        **files,
        "bash": "_atune_journal_files",  # a name with _file lets shtab add the slash to a folder
        "zsh": "_atune_journals",
        "fish": f"({ask}; {files['fish'][1:-1]})",
        "preamble": {"bash": f"{words['preamble']['bash']}\n{bash}\n", "zsh": zsh},
    }


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


class _HelpAll(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        assert isinstance(parser, Parser)
        parser.show_rare()
        parser.print_help()
        parser.exit()


_LAST = f"{' '.join(SHARED)} --help --help-all "
"""Options at the end of their group in the help, in this order."""


def _shown(action: argparse.Action) -> str:
    """Return a positional argument as the usage shows it."""
    name = str(action.metavar)
    return {"?": f"[{name}]", "*": f"[{name} …]", "+": f"{name} …"}.get(str(action.nargs), name)


def _names(action: argparse.Action) -> list[str]:
    """Return the names by which an option may be meant."""
    return [action.dest, *(flag.lstrip("-").replace("-", "_") for flag in action.option_strings)]
