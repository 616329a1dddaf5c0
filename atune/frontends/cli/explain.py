"""``atune explain``: the facts of a configuration that it compiles, or of two. ``atune show``: one candidate."""

from __future__ import annotations

import argparse
import ast
import difflib
import json
import os
import shlex
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from atune.errors import UsageError
from atune.frontends.cli.output import print_message, print_out
from atune.frontends.cli.runs import find_journal
from atune.journal.reader import replay
from atune.journal.result import Record, Result
from atune.model.artifact import Artifact, source_path
from atune.model.candidate import Config, normalise, numbered
from atune.model.device import parse_target
from atune.model.settings import CompileSettings
from atune.reporting.export import record_data, record_lines
from atune.reporting.summary import failure_groups

if TYPE_CHECKING:
    from atune.workers.messages import Discovery
    from atune.workers.terminal import Interrupts
    from atune.workload.pickling import FileRef


def parse_config(text: str) -> Config:
    """Return the configuration that ``a=1,b=(2, 3),c=name`` describes. Raises `UsageError` and `SpaceError`.

    A value is a Python literal. Any other expression is text.
    """
    source, config = f"_({text})", Config()
    try:
        call = ast.parse(source, mode="eval").body
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name) or call.args:
            raise SyntaxError
        for keyword in call.keywords:
            name, value = keyword.arg, ast.get_source_segment(source, keyword.value)
            if not name or name in config:
                raise SyntaxError
            with suppress(ValueError):  # not a literal
                value = ast.literal_eval(keyword.value)
            config[name] = normalise(value, f"--config: {name}")
    except SyntaxError as error:
        raise UsageError(f"--config {text!r}: give each name once, as name=value, such as block_M=128") from error
    return config


def record_at(result: Result, index: int | None) -> Record:
    """Return the record of candidate `index`; for None the winner's, else that of the first that failed."""
    if index is None and result.best is not None:
        return result.best
    if index is None:
        index = next((group.first.index for group in failure_groups(result.records)), None)
    found = next((record for record in result.all_records if record.index == index), None)
    if found is not None:
        return found
    wanted = "candidate that was measured or failed" if index is None else f"candidate {index}"
    journal = str(result.journal)
    raise UsageError(f"{journal} has no {wanted}; those it has: atune replay {shlex.quote(journal)} --table")


def explain_command(arguments: argparse.Namespace, interrupts: Interrupts) -> int:
    import anyio

    ref, configs, target = _asked(arguments)
    settings = CompileSettings(compile_timeout_s=arguments.compile_timeout_s, cicc=False, workers=len(configs))
    found, machine = anyio.run(_compiled, ref, configs, target, settings)
    if machine.fallback:
        print_message("no GPU found: this is for the CPU; give an arch for a GPU, such as --target sm_90a", "warning: ")
    arch, two = machine.target.arch, len(found) == 2
    if arguments.json:
        data = [record_data(one, arch) | ({"source": source} if arguments.source else {}) for one, source in found]
        print_out(json.dumps({"candidates": data} if two else data[0]))
        return 0
    shown = two or arguments.source
    texts = [[*record_lines(one, arch), *(source.splitlines() if shown else ())] for one, source in found]
    context = len(texts[0]) if arguments.source else 2
    changes = list(difflib.unified_diff(texts[0], texts[1], "A", "B", n=context, lineterm="")) if two else texts[0]
    print_out("\n".join(changes or ["the facts and the source are the same"]))
    return 0


async def _compiled(
    ref: FileRef, configs: list[Config], target: str, settings: CompileSettings
) -> tuple[list[tuple[Record, str]], Discovery]:
    """Compile configurations. Returns their records and sources, and what the machine has. Raises `CompileFailed`."""
    # `atune show`, which is in this module, too, starts without what compiles.
    from atune.frontends.compile_all import compiled, compilers, raise_failures

    async with compilers(ref, target, settings) as (machine, run):
        found = await compiled(machine, numbered(configs), run, 1)
        raise_failures([record for record, _ in found])
        return [(record, _source(artifact)) for record, artifact in found if artifact is not None], machine.found


def _source(artifact: Artifact) -> str:
    """Return a kernel's device source without its symbol."""
    text = Path(source_path(artifact.path, artifact.symbol)).read_text(errors="replace")
    return text.replace(f"{artifact.symbol}_kernel", "kernel").replace(artifact.symbol, "kernel")


def _asked(arguments: argparse.Namespace) -> tuple[FileRef, list[Config], str]:
    """Return the workload, the configurations, and the target. Raises `UsageError`."""
    # As above.
    from atune.engine.settings import check_code, check_parts
    from atune.frontends.problems import one_problem
    from atune.frontends.resume import options_of, origin_of
    from atune.workload.pickling import parse_file_ref

    what, indices, target = arguments.what, arguments.index, arguments.target
    given = None if arguments.workload is None else parse_file_ref(arguments.workload, "--workload")
    if (n := max(len(indices), len(arguments.config))) > 2:
        raise UsageError(f"{n} configurations: give one, or two to compare")
    if what.endswith(".py") or (":" in what and not os.path.exists(what)):
        if given is not None:
            raise UsageError(f"--workload is for a journal, and {what} is a workload itself: leave one out")
        if indices:
            raise UsageError(f"an INDEX needs a journal, and {what} is not one: give --config a=1,b=2")
        ref, problem = parse_file_ref(what, "atune explain"), one_problem(arguments.arg, "explain")
        ref, target = msgspec.structs.replace(ref, arguments=problem), target or "auto"
        configs = [*map(parse_config, arguments.config)] or [{}]
    elif arguments.config or arguments.arg:
        raise UsageError("--config and --arg work with FILE.py:NAME only: for a journal, give the candidate's INDEX")
    else:
        result = replay(find_journal(what))
        configs = [record_at(result, index).config for index in indices or [None]]
        for config in configs:
            check_code(CompileSettings(), config, check_parts(arguments.accept))
        ref = origin_of(result.header, say=partial(print_message, kind="")) if given is None else given
        ref = msgspec.structs.replace(ref, arguments=result.header.arguments)
        target = target or options_of(result.header)["target"]
    parse_target(target)
    return ref, configs, target


def show_command(arguments: argparse.Namespace, interrupts: Interrupts) -> int:
    result = replay(arguments.journal)
    asked = record_at(result, arguments.index), result.header.target.arch, result
    print_out(json.dumps(record_data(*asked)) if arguments.json else "\n".join(record_lines(*asked)))
    return 0
