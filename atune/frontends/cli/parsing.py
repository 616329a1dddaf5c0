"""The parser of a command, and options that become its arguments."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Iterable, Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, NoReturn

from atune.errors import UsageError

if TYPE_CHECKING:
    from atune.model.options import Field

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
            known = list(action.choices)
            if re.fullmatch(r".+\.py(:\w*)?|[\w.]+:\w+", value):
                raise UsageError(f"{self.prog} has no command {value}; did you mean {self.prog} tune {value}?")
            near = get_close_matches(value.lower(), known, n=1)
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
        no = flag.startswith("--no-")
        flags = {name: way for one in self._actions if one.option_strings for name, way in _names(one, no).items()}
        ways = {name: f"{way} in Python" for name, way in python_ways().items()} if self.prog == "atune tune" else {}
        meant = likely(flag.lstrip("-").removeprefix("no-").replace("-", "_"), flags, ways)
        instead = _INSTEAD.get(flag.replace("--without", "--with"), "")
        hint = f"; did you mean {' or '.join(meant)}?" if meant else instead
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
    names = {_name(flag): flags[-1 if no else 0] if pair else flag for flag in flags}
    return {action.dest: [*names.values()][-1], **names}


def _name(flag: str) -> str:
    return flag.lstrip("-").replace("-", "_")


class _Each(argparse.Action):
    """Flags that exclude each other: each sets its own name."""

    def __call__(self, parser: Any, namespace: Any, values: Any, flag: str | None = None) -> None:
        setattr(namespace, _name(flag or ""), True)


def add_command(
    commands: Any, shown: Parser, name: str, command: Callable[..., int], text: str, **options: Any
) -> Parser:
    """Add the parser of a command to `commands`. `shown` holds the options that all commands share.

    `text`: what the command does, as the beginning of a sentence: its description, and up to a semicolon its line in
    the help.
    `options`: further ones of the parser.
    """
    help = f"{text[0].lower()}{text[1:]}".partition(";")[0]
    parser: Parser = commands.add_parser(name, parents=[shown], help=help, description=f"{text}.", **options)
    parser.set_defaults(command=command)
    return parser


def with_flags(kind: type[Any]) -> list[Field]:
    """Return the options of a group that the command line has."""
    from atune.model.options import options_of

    return [field for field in options_of(kind).values() if field.option.flag]


def add_options(parser: Parser, fields: Iterable[Field], group: Any = None, *, unset: str = "") -> None:
    """Add an argument for each option, under its name. `group`: where in the help. `unset`: the default, in words."""
    for field in fields:
        option, flags = field.option, field.option.flag.split("|")
        default = unset or default_of(field)
        how: dict[str, Any] = {"dest": field.name, "default": None if unset else field.default}
        text = f"do not {first_sentence(option.doc)}" if skips(field) else first_sentence(option.doc)
        how["help"] = (text + (f" [default: {default}]" if default else "")).replace("%", "%%")
        if option.action == "repeat":
            how |= {"action": "append", "default": [], "metavar": option.metavar}
        elif len(flags) > 1:
            how |= {"action": _Each, "nargs": 0}
            parser.set_defaults(**{_name(flag): False for flag in flags})
        elif skips(field):
            how["action"] = "store_false"
        elif field.plain is bool:
            how["action"] = argparse.BooleanOptionalAction if field.default is not False else "store_true"
        else:
            how["metavar"] = option.metavar or field.name.upper()
            if field.plain in (int, float):
                how["type"] = number(field)
        (parser if group is None else group).add_argument(*flags, **how)


def skips(field: Field) -> bool:
    """Tell whether the command line's option switches off what is on by default."""
    return field.plain is bool and field.option.flag.startswith("--skip-")


def default_of(field: Field) -> str:
    """Return an option's default in words; empty if nobody needs it."""
    if field.option.unset or field.default is None or field.default is False:
        return field.option.unset
    if field.default is True:
        return "" if skips(field) else "on"
    return f"{field.default:g}" if isinstance(field.default, float) else str(field.default)


def first_sentence(doc: str) -> str:
    """Return the first sentence of an option's text as the command line shows it."""
    sentence = re.split(r"\.(?: |$)", doc)[0].replace("`", "")
    return sentence if sentence[1:2].isupper() else sentence[0].lower() + sentence[1:]


def number(field: Field) -> Callable[[str], float]:
    """Return an argparse type for an option that is a number."""
    import msgspec

    from atune.model.options import wanted

    def parse(text: str) -> float:
        try:
            return msgspec.convert(text, field.bounded, strict=False)  # type: ignore[no-any-return]
        except msgspec.ValidationError as wrong:
            raise argparse.ArgumentTypeError(f"must be {wanted(wrong)}, got {text!r}") from None

    return parse
