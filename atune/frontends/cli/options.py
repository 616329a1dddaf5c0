"""Options of commands: those of the command line alone, and how each becomes an argument."""

import argparse
import re
from functools import partial
from typing import Annotated, Any, TypedDict

from atune.frontends.cli.parsing import Parser, name_of
from atune.frontends.options import TuneOptions
from atune.model.options import SWITCH, Option, option, options_of
from atune.model.settings import BenchmarkSettings, CompileSettings


class CommandOptions(TypedDict):
    """Options of the command line alone."""

    # fmt: off
    arg: Annotated[list[str], option(
        "Take these values of an argument of the problem, in place of the file's own. With several, every "
        "combination is tuned, as a set.",
        flag="--arg", metavar="NAME=V[,V]", repeat=True, group="where", page="how/shapes.md",
    )]
    problems: Annotated[str | None, option(
        "Tune the set of problems in this file: a JSON list, .jsonl or .csv, of arguments.",
        flag="--problems", metavar="FILE", group="where", page="how/shapes.md",
    )]
    dry_run: Annotated[bool, option(
        "Measure nothing: say what would be done, or compile every candidate; with a target such as sm_90a neither "
        "needs a GPU.",
        default=False, flag="--dry-run|--compile-only", group="preview", page="concepts.md#dry-run",
    )]
    quiet: Annotated[bool, option(
        "Show no progress on stderr, or log every event there instead. Elsewhere than on a terminal each is a JSON "
        "object.",
        default=False, flag="--quiet|--verbose", group="output",
    )]
    # fmt: on


def groups() -> dict[str, list[Option]]:
    """Return the options of ``tune`` by the headings of the help."""
    found = {name: list[Option]() for name in ("search", "where", "preview", "output", "compiling", "measuring")}
    for one in (*with_flags(TuneOptions), *with_flags(CommandOptions)):
        found[one.group].append(one)
    found["compiling"] += with_flags(CompileSettings)
    found["measuring"] += with_flags(BenchmarkSettings)
    return found


def with_flags(group: type[Any]) -> list[Option]:
    """Return the options of a group that the command line has."""
    return [one for one in options_of(group).values() if one.flag]


def add_option(parser: Parser, heading: Any, option: Option, unset: str = "") -> None:
    """Add the argument of an option under a heading of a parser's help. `unset`: its default, in words."""
    flags, how = option.flag.split("|"), dict[str, Any](default=None if unset else option.default)
    if option.repeat:
        how = {"action": "append", "default": [], "metavar": option.metavar}
    elif len(flags) > 1:
        how |= {"action": _Each, "nargs": 0}
        parser.set_defaults(**{name_of(flag): False for flag in flags})
    elif skips(option):
        how["action"] = "store_false"
    elif option.kind in SWITCH:
        how["action"] = argparse.BooleanOptionalAction if option.default is not False else "store_true"
    else:
        how |= {"metavar": option.metavar or None, "type": partial(option.checked, f"{flags[0]}:", strict=False)}
    heading.add_argument(*flags, dest=option.name, help=help_of(option, unset).replace("%", "%%"), **how)


class _Each(argparse.Action):
    """Flags that exclude each other: each sets its own name."""

    def __call__(self, parser: Any, namespace: Any, values: Any, flag: str | None = None) -> None:
        setattr(namespace, name_of(flag or ""), True)


def skips(option: Option) -> bool:
    """Tell whether the command line's option switches off what is on by default."""
    return option.flag.startswith("--skip-")


def help_of(option: Option, unset: str = "") -> str:
    """Return the first sentence of an option's text, and its default in words, `unset`, if somebody needs it."""
    sentence = re.split(r"\.(?: |$)", option.doc)[0].replace("`", "")
    if not sentence[1:2].isupper():
        sentence = sentence[0].lower() + sentence[1:]
    default, value = unset or option.unset, option.default
    if not default and value is not None and value is not False and not skips(option):
        default = "on" if value is True else f"{value:g}" if isinstance(value, float) else str(value)
    return (f"do not {sentence}" if skips(option) else sentence) + (f" [default: {default}]" if default else "")
