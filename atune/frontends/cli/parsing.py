"""How options become arguments of the command line, and ``atune tune``, which has most of them."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Annotated, Any, TypedDict

import msgspec

from atune.frontends.api.options import TuneOptions
from atune.frontends.cli.help import SHARED, Parser
from atune.model.options import Field, Option, options_of, wanted
from atune.model.settings import BenchmarkSettings, CompileSettings

if TYPE_CHECKING:
    from atune.workers.system.terminal import Interrupts


class ScreenOptions(TypedDict):
    """Options of the command line alone."""

    # fmt: off
    table: Annotated[bool, Option(
        "Print every candidate.", default=False, flag="--table", group="output", common=True,
    )]
    quiet: Annotated[bool, Option(
        "Show no progress on stderr.", default=False, flag="--quiet", group="output", common=True,
    )]
    verbose: Annotated[bool, Option(
        "Log every event on stderr instead of the progress. Elsewhere than on a terminal each is a JSON object.",
        default=False, flag="--verbose", group="output",
    )]
    # fmt: on


class ProblemOptions(TypedDict):
    """Options that choose the problem, or several."""

    # fmt: off
    arg: Annotated[list[str], Option(
        "Tune for these values of an argument of the problem, in place of the file's own. With several, every "
        "combination is tuned, as a set.",
        default=None, flag="--arg", metavar="NAME=V[,V]", action="repeat", group="where", page="how/shapes.md",
        common=True,
    )]
    problems: Annotated[str | None, Option(
        "Tune the set of problems in this file: a JSON list, .jsonl or .csv, of arguments.",
        flag="--problems", metavar="FILE", group="where", page="how/shapes.md",
    )]
    # fmt: on


class PreviewOptions(TypedDict):
    """Options that leave parts of a run out."""

    # fmt: off
    dry_run: Annotated[bool, Option(
        "Say what would be done; compile and measure nothing.", default=False, flag="--dry-run", group="preview",
        page="concepts.md#dry-run", common=True,
    )]
    compile_only: Annotated[bool, Option(
        "Compile every candidate and measure none; with a target such as sm_90a no GPU is needed.", default=False,
        flag="--compile-only", group="preview", page="#compile-only", common=True,
    )]
    # fmt: on


def groups() -> dict[str, list[Field]]:
    """Return the options of ``tune`` by the headings of the help, the common ones first."""
    found: dict[str, list[Field]] = {
        name: [] for name in ("search", "where", "preview", "output", "compiling", "measuring")
    }
    for kind in (TuneOptions, ProblemOptions, PreviewOptions, ScreenOptions):
        for field in with_flags(kind):
            found[field.option.group].append(field)
    found["compiling"] = with_flags(CompileSettings)
    found["measuring"] = with_flags(BenchmarkSettings)
    return {name: sorted(fields, key=lambda one: not one.option.common) for name, fields in found.items()}


_EXAMPLES = """\
examples:
  atune tune gemm.py                      # tune the workload of a file
  atune tune gemm.py:GEMM --budget 10%    # try a tenth, the likeliest first
  atune tune gemm.py --dry-run            # count the candidates, and stop"""


def add_commands(commands: Any, shown: Parser) -> None:
    """Add ``tune``. `shown` holds the options that all commands share."""
    tune = add_command(commands, None, "tune", _tune, "Tune a workload", epilog=_EXAMPLES, add_help=False)
    tune.short = True
    tune.add_argument("workload", metavar="FILE.py[:NAME]", help=WORKLOAD)
    known = groups()
    titles = {heading: tune.add_argument_group(heading) for heading in known}
    for heading, fields in known.items():
        add_options(tune, fields, titles[heading])
    for option, text in SHARED.items():
        titles["output"].add_argument(option, action="store_true", help=text)
    tune.add_help_options(
        tune.add_argument_group("help"), [action for action in tune._actions if action.dest == "debug"]
    )


WORKLOAD = "the file, and the name of its atune.Workload or decorated kernel if it has several"


def _tune(arguments: argparse.Namespace, interrupts: Interrupts) -> int:
    if not arguments.dry_run:
        from atune.workers.processes.server import warm_early

        warm_early()
    from atune.frontends.cli.tune import tune_command

    return tune_command(arguments, interrupts)


def add_command(
    commands: Any, shown: Parser | None, name: str, command: Callable[..., int], text: str, **options: Any
) -> Parser:
    """Add the parser of a command to `commands`. `shown` holds the options that all commands share.

    `text`: what the command does, as the beginning of a sentence: its description, and up to a semicolon its line in
    the help.
    `options`: further ones of the parser.
    """
    help = f"{text[0].lower()}{text[1:]}".partition(";")[0]
    parents = [] if shown is None else [shown]
    parser: Parser = commands.add_parser(name, parents=parents, help=help, description=f"{text}.", **options)
    parser.set_defaults(command=command)
    return parser


def with_flags(kind: type[Any]) -> list[Field]:
    """Return the options of a group that the command line has."""
    return [field for field in options_of(kind).values() if field.option.flag]


def add_options(parser: Parser, fields: Iterable[Field], group: Any = None, *, unset: str = "") -> None:
    """Add an argument for each option, under its name. `group`: where in the help. `unset`: the default, in words."""
    for field in fields:
        option = field.option
        default = unset or default_of(field)
        how: dict[str, Any] = {"dest": field.name, "default": None if unset else field.default}
        text = f"do not {first_sentence(option.doc)}" if skips(field) else first_sentence(option.doc)
        how["help"] = (text + (f" [default: {default}]" if default else "")).replace("%", "%%")
        if option.action == "repeat":
            how |= {"action": "append", "default": [], "metavar": option.metavar}
        elif skips(field):
            how["action"] = "store_false"
        elif field.plain is bool:
            how["action"] = argparse.BooleanOptionalAction if field.default is not False else "store_true"
        else:
            how["metavar"] = option.metavar or field.name.upper()
            if field.plain in (int, float):
                how["type"] = number(field)
        action = (parser if group is None else group).add_argument(option.flag, **how)
        parser.note(action, option)


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

    def parse(text: str) -> float:
        try:
            return msgspec.convert(text, field.bounded, strict=False)  # type: ignore[no-any-return]
        except msgspec.ValidationError as wrong:
            raise argparse.ArgumentTypeError(f"must be {wanted(wrong)}, got {text!r}") from None

    return parse
