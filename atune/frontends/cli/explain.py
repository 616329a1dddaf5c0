"""``atune explain``: the facts of a configuration that it compiles, or of two. ``atune show``: one candidate."""

from __future__ import annotations

import argparse
import ast
import difflib
import json
import os
import re
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from atune.errors import UsageError
from atune.frontends.api.options import EngineOptions
from atune.frontends.cli.parsing import Parser, add_command, add_options
from atune.frontends.cli.runs import add_accept, add_journal, find_journal
from atune.frontends.cli.tune_options import ProblemOptions
from atune.model.options import options_of
from atune.model.settings import CompileSettings

if TYPE_CHECKING:
    from atune.journal.result import Record
    from atune.model.candidate import Config
    from atune.workers.processes.messages import Discovery
    from atune.workers.system.terminal import Interrupts
    from atune.workload.pickling import FileRef

MOST = 2
"""Most configurations in one command."""
_COMMA = re.compile(r",(?=\s*[A-Za-z_]\w*\s*=)")
"""A comma before the next name. Commas inside a value do not split."""


def add_commands(commands: Any, shown: Parser) -> None:
    """Add the commands' parsers to `commands`. `shown` holds the options that all commands share."""
    text = "Show one candidate of a journal whole; runs no code"
    parser = add_command(commands, shown, "show", _show_candidate, text)
    add_journal(parser)
    text = "the candidate [default: the winner, or else the first that failed]"
    parser.add_argument("index", type=int, nargs="?", metavar="INDEX", help=text)
    text = "Show what a configuration compiles to: layouts, registers, occupancy. Give two to see what differs"
    parser = add_command(commands, shown, "explain", _explain, text)
    parser.add_argument("what", metavar="FILE.py[:NAME]|J", help="a workload, or a journal of one")
    text = "candidates of the journal [default: its winner]"
    parser.add_argument("index", type=int, nargs="*", metavar="INDEX", help=text)
    text = "the configuration; give it twice to compare two [default: the kernel's defaults]"
    parser.add_argument("--config", action="append", default=[], metavar="a=1,b=2", help=text)
    add_options(parser, [options_of(ProblemOptions)["arg"]])
    add_options(parser, [options_of(EngineOptions)["target"]], unset="auto, or the journal's")
    parser.add_argument("--source", action="store_true", help="also print the generated device source")
    add_accept(parser, "accept that compilers get a journal's settings")
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
            raise UsageError(f"--config: {part.strip()!r} is not of the form name=value, such as block_M=128")
        if name in config:
            raise UsageError(f"--config: {name} is given twice")
        try:
            parsed = ast.literal_eval(value.strip())
        except (ValueError, SyntaxError):
            parsed = value.strip()
        config[name] = normalise(parsed, f"--config: {name}")
    return config


def _explain(arguments: argparse.Namespace, interrupts: Interrupts) -> int:
    import anyio

    from atune.frontends.cli.output import NO_WINNER, print_lines, print_message, print_out
    from atune.reporting.screen import Line
    from atune.reporting.summary import example_lines, failure_groups, failures_data, group_lines

    ref, configs, target = _asked(arguments)
    settings = CompileSettings(compile_timeout_s=arguments.compile_timeout_s, cicc=False, workers=len(configs))
    found, sources, machine = anyio.run(_compiled, ref, configs, target, settings)
    if machine.fallback:
        print_message("no GPU found: this is for the CPU; give an arch for a GPU, such as --target sm_90a", "warning: ")
    if groups := failure_groups(found):
        for group in groups:
            print_message("\n".join(group_lines([group], example=example_lines([group]))))
        if arguments.json:
            print_out(json.dumps({"failures": failures_data(found)}))
        return NO_WINNER
    arch = machine.target.arch
    if arguments.json:
        data = [_data(one, arch) for one in found]
        if arguments.source:
            data = [{**one, "source": source} for one, source in zip(data, sources, strict=True)]
        print_out(json.dumps(data[0] if len(data) < MOST else {"candidates": data}))
        return 0
    for source in sources if arguments.source else ():
        print_out(source)
    print_lines(map(Line, _lines(found, sources, arch)))
    return 0


async def _compiled(
    ref: FileRef, configs: list[Config], target: str, settings: CompileSettings
) -> tuple[list[Record], list[str], Discovery]:
    """Compile what is asked. Returns the records, with their facts, of what compiled and their sources; where
    something failed the records of that alone. Also returns what was found of the machine.
    """
    import msgspec

    from atune.frontends.api.compile_all import compiled, compilers, failed_records
    from atune.journal.result import Record
    from atune.model.artifact import Artifact, source_path
    from atune.model.candidate import Candidate, config_key

    async with compilers(ref, target, settings) as (machine, run):
        candidates = [Candidate(n, config_key(config), config) for n, config in enumerate(configs)]
        answers = await compiled(machine, candidates, run, 1)
        if failed := failed_records(candidates, answers):
            return failed, [], machine.found
        found: list[Record] = []
        sources: list[str] = []
        for one in candidates:
            answer, facts = answers[one.index], run.recorder.state.entry(one.index).facts
            assert isinstance(answer, Artifact), "nothing failed"
            record = Record(index=one.index, key=one.key, config=one.config, status="remaining")
            found.append(msgspec.structs.replace(record, facts=facts, machine=answer.machine))
            text = Path(source_path(answer.path, answer.symbol)).read_text(errors="replace")
            sources.append(text.replace(f"{answer.symbol}_kernel", "kernel").replace(answer.symbol, "kernel"))
        return found, sources, machine.found


def _asked(arguments: argparse.Namespace) -> tuple[FileRef, list[Config], str]:
    """Return the workload, the configurations, and the target. Raises `UsageError`."""
    import msgspec

    from atune.engine.start import check_code, check_parts
    from atune.frontends.api.problems import parse_sizes
    from atune.frontends.api.resume import origin_of
    from atune.frontends.cli.output import print_message
    from atune.journal.reader import is_journal, replay
    from atune.model.device import parse_target
    from atune.reporting.explanation import record_at
    from atune.workload.pickling import parse_file_ref

    what, target = arguments.what if ".py" in arguments.what else find_journal(arguments.what), "auto"
    if is_journal(what) or os.path.isdir(what):  # of a folder, reading says which journal to give
        if arguments.config or arguments.arg:
            raise UsageError(
                "--config and --arg work with FILE.py:NAME only: for a journal, give the candidate's INDEX"
            )
        result = replay(what)
        if not arguments.index and result.best is None:
            raise UsageError(f"{what} has no winner: give a candidate's INDEX")
        configs = [record_at(result, index).config for index in arguments.index or [None]]
        for config in configs:
            check_code(CompileSettings(), config, check_parts(arguments.accept))
        ref = origin_of(result.header, "give FILE.py:NAME and --config a=1,b=2", partial(print_message, kind=""))
        if result.header is not None:
            target = result.header.target.arch or result.header.target.kind
    else:
        if arguments.index:
            raise UsageError(f"an INDEX needs a journal, and {what} is not one: give --config a=1,b=2")
        ref = parse_file_ref(what, "atune explain")
        sizes = parse_sizes(arguments.arg, "--arg")
        if several := next((name for name, values in sizes.items() if len(values) > 1), ""):
            raise UsageError(f"--arg {several}: explain takes one problem: give it one value")
        ref = msgspec.structs.replace(ref, arguments={name: value for name, (value,) in sizes.items()})
        configs = [*map(parse_config, arguments.config)] or [{}]
    if len(configs) > MOST:
        raise UsageError(f"{len(configs)} configurations: give one, or two to compare")
    parse_target(arguments.target or target)
    return ref, configs, arguments.target or target


def _lines(found: list[Record], sources: list[str], arch: str) -> list[str]:
    """Return the facts of one configuration, or what differs between two, a line each."""
    from atune.model.candidate import describe_config, printable
    from atune.reporting.explanation import differences, fact_lines
    from atune.reporting.export import aligned
    from atune.reporting.summary import DEFAULTS

    names = [describe_config(one.config) or DEFAULTS for one in found]
    if len(found) < MOST:
        return [f"config     {names[0]}", f"target     {arch or 'c'}", *fact_lines(found[0], arch)]
    differing = differences(found[0], found[1], arch)
    table = aligned([("", "A", "B"), *differing]).splitlines() if differing else ["no known fact differs"]
    one, other = (source.splitlines() for source in sources)
    changed = [printable(line) for line in difflib.unified_diff(one, other, "A", "B", n=2, lineterm="")]
    end = ["generated source:", *changed] if changed else ["the generated source is the same"]
    return [f"A          {names[0]}", f"B          {names[1]}", *table, *end]


def _data(one: Record, arch: str) -> dict[str, Any]:
    """Return the facts of a configuration as ``--json`` prints them."""
    import msgspec

    from atune.reporting.export import occupancy

    machine = one.machine and msgspec.structs.asdict(one.machine)  # a stack of 0 bytes too
    facts = {"config": one.config, "facts": one.facts, "machine": machine, "occupancy": occupancy(one, arch)}
    return {**msgspec.to_builtins(facts), "target": arch or "c"}


def _show_candidate(arguments: argparse.Namespace, interrupts: Interrupts) -> int:
    from atune.frontends.cli.output import print_out
    from atune.reporting.explanation import candidate_story, story_data, story_lines

    story = candidate_story(arguments.journal, arguments.index)
    print_out(json.dumps(story_data(story)) if arguments.json else "\n".join(story_lines(story)))
    return 0
