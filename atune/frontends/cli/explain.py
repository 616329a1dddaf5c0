"""``atune explain``: the facts of a configuration that it compiles, or of two. ``atune show``: one candidate."""

from __future__ import annotations

import argparse
import ast
import json
import os
import re
from typing import TYPE_CHECKING, Any

from atune.errors import UsageError
from atune.frontends.api.options import EngineOptions
from atune.frontends.cli.help import Parser
from atune.frontends.cli.parsing import add_command, add_options
from atune.frontends.cli.runs import add_journal, find_journal
from atune.model.options import options_of
from atune.model.settings import CompileSettings

if TYPE_CHECKING:
    from atune.model.candidate import Config
    from atune.model.jobs import Explained
    from atune.workers.system.terminal import Interrupts
    from atune.workload.pickling import FileRef

MOST = 2
"""Most configurations in one command."""
_COMMA = re.compile(r",(?=\s*[A-Za-z_]\w*\s*=)")
"""A comma before the next name. Commas inside a value do not split."""


def add_commands(commands: Any, shown: Parser) -> None:
    """Add the commands' parsers to `commands`. `shown` holds the options that all commands share."""
    parser = add_command(
        commands, shown, "show", _show_candidate, "Show one candidate of a journal whole; runs no code"
    )
    add_journal(parser)
    parser.add_argument(
        "index",
        type=int,
        nargs="?",
        metavar="INDEX",
        help="the candidate [default: the winner, or else the first that failed]",
    )
    text = "Show what a configuration compiles to; its layouts, registers and occupancy; of two, what differs"
    parser = add_command(commands, shown, "explain", _explain, text)
    parser.add_argument("what", metavar="FILE.py[:NAME]|J", help="a workload, or a journal of one")
    parser.add_argument(
        "index", type=int, nargs="*", metavar="INDEX", help="candidates of the journal [default: its winner]"
    )
    parser.add_argument(
        "--config",
        action="append",
        default=[],
        metavar="a=1,b=2",
        help="the configuration; give it twice to compare two [default: the kernel's defaults]",
    )
    add_options(parser, [options_of(EngineOptions)["target"]], unset="auto, or the journal's")
    parser.add_argument("--source", action="store_true", help="also print the generated device source")
    add_options(parser, [options_of(CompileSettings)["compile_timeout_s"]])


def parse_config(text: str) -> Config:
    """Return the configuration that ``a=1,b=(2, 3),c=name`` describes. Raises `UsageError` and `SpaceError`.

    A value is a Python literal. Anything else is text.
    """
    from atune.model.candidate import normalise

    config: Config = {}
    for part in filter(str.strip, _COMMA.split(text)):
        name, equals, value = part.partition("=")
        name = name.strip()
        if not equals or not name.isidentifier():
            raise UsageError(
                f"--config: {part.strip()!r} is not of the form name=value; give for example block_M=128,num_stages=2"
            )
        if name in config:
            raise UsageError(f"--config: {name} is given twice")
        try:
            parsed = ast.literal_eval(value.strip())
        except (ValueError, SyntaxError):
            parsed = value.strip()
        config[name] = normalise(parsed, f"--config: {name}")
    return config


def _explain(arguments: argparse.Namespace, interrupts: Interrupts) -> int:
    from functools import partial

    import anyio
    import msgspec

    from atune.frontends.cli.output import print_message
    from atune.model.artifact import Failure
    from atune.model.device import parse_target
    from atune.workers.local.space_worker import explain

    ref, configs, target, choices = _asked(arguments)
    parse_target(target)
    settings = CompileSettings(compile_timeout_s=arguments.compile_timeout_s)
    on_cpu, answers = anyio.run(partial(explain, ref, configs, target=target, compile=settings))
    if on_cpu:
        print_message("no GPU found: this is for the CPU; give an arch for a GPU, such as --target sm_90a", "warning: ")
    found = [answer for answer in answers if not isinstance(answer, Failure)]
    if len(found) < len(answers):
        return _failed([answer for answer in answers if isinstance(answer, Failure)], configs, arguments)
    found = [msgspec.structs.replace(one, choice=choice) for one, choice in zip(found, choices, strict=True)]
    _show(found, arguments)
    return 0


def _asked(arguments: argparse.Namespace) -> tuple[FileRef, list[Config], str, list[str]]:
    """Return the workload, the configurations, the target, and for each what a run chose. Raises `UsageError`."""
    from atune.journal.reader import is_journal
    from atune.workload.pickling import parse_file_ref

    what = arguments.what if ".py" in arguments.what else find_journal(arguments.what)
    if is_journal(what) or os.path.isdir(what):  # of a folder, reading says which journal to give
        if arguments.config:
            raise UsageError("--config works with FILE.py:NAME only: for a journal, give the candidate's INDEX")
        ref, configs, target, choices = _of_journal(what, arguments.index)
    else:
        if arguments.index:
            raise UsageError(f"an INDEX needs a journal, and {what} is not one: give --config a=1,b=2")
        ref, target = parse_file_ref(what, "atune explain"), "auto"
        configs = [parse_config(text) for text in arguments.config] or [{}]
        choices = [""] * len(configs)
    if len(configs) > MOST:
        raise UsageError(f"{len(configs)} configurations: give one, or two to compare")
    return ref, configs, arguments.target or target, choices


def _of_journal(path: str, indices: list[int]) -> tuple[FileRef, list[Config], str, list[str]]:
    from atune.frontends.api.resume import origin_of
    from atune.journal.reader import replay
    from atune.reporting.explanation import choice_of, not_tried

    result = replay(path)
    known = {record.index: dict(record.config) for record in result.all_records}
    if not indices and result.best_index is None:
        raise UsageError(f"{path} has no winner: give a candidate's INDEX")
    wanted = indices or [index for index in (result.best_index,) if index is not None]
    if missing := [index for index in wanted if index not in known]:
        raise not_tried(result, missing[0])
    ref = origin_of(result.header, "give FILE.py:NAME and --config a=1,b=2")
    target = None if result.header is None else result.header.target
    text = "auto" if target is None else target.arch or target.kind
    choices = [choice_of(result.all_records, index) for index in wanted]
    return ref, [known[index] for index in wanted], text, choices


def _failed(failures: list[Any], configs: list[Config], arguments: argparse.Namespace) -> int:
    """Print which configurations do not compile, and why, and return the exit status."""
    from atune.frontends.cli.output import NO_WINNER, print_detail, print_message, print_out
    from atune.model.artifact import what_failed
    from atune.model.candidate import describe_config, printable
    from atune.reporting.headline import DEFAULTS
    from atune.reporting.summary import evidence_lines

    for failure in failures:
        asked = describe_config(configs[failure.index]) or DEFAULTS
        why = f"{asked} {what_failed(failure.kind)}: {printable(failure.message)}"
        print_message("\n  ".join([why, *evidence_lines(failure.message, failure.detail)]))
        if arguments.debug:
            print_detail(failure.detail)
    if arguments.json:
        print_out(json.dumps({"failures": [_failure_data(failure, configs[failure.index]) for failure in failures]}))
    return NO_WINNER


def _failure_data(failure: Any, config: Config) -> dict[str, Any]:
    import msgspec

    from atune.workload.source_locations import place_in

    where = msgspec.to_builtins(place_in(failure.detail))
    return {"config": config, "kind": failure.kind, "message": failure.message, "where": where}


def _show(found: list[Explained], arguments: argparse.Namespace) -> None:
    from atune.frontends.cli.output import print_out
    from atune.reporting.explanation import difference_lines, differing_rows, report_lines, source_difference

    if arguments.source and not arguments.json:
        for one in found:
            print_out(one.source)
    if not arguments.json:
        print_out("\n".join(difference_lines(*found) if len(found) == MOST else report_lines(found[0])))
        return
    data = [{**one.as_data(), **({"source": one.source} if arguments.source else {})} for one in found]
    if len(found) < MOST:
        print_out(json.dumps(data[0]))
        return
    one, other = found
    differing = [{"fact": name, "values": [mine, theirs]} for name, mine, theirs in differing_rows(one, other)]
    print_out(json.dumps({"candidates": data, "differences": differing, "source_diff": source_difference(one, other)}))


def _show_candidate(arguments: argparse.Namespace, interrupts: Interrupts) -> int:
    from atune.frontends.cli.output import print_out
    from atune.reporting.explanation import candidate_story, story_data, story_lines

    story = candidate_story(arguments.journal, arguments.index)
    print_out(json.dumps(story_data(story)) if arguments.json else "\n".join(story_lines(story)))
    return 0
