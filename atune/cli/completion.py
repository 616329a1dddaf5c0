"""Shell completion: scripts for bash, zsh and fish, made of the command line's own parsers."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from atune.cli.output import write_output
from atune.cli.printing import say
from atune.errors import UsageError

SHELLS = ("bash", "zsh", "fish")


def add_completion(parser: argparse.ArgumentParser) -> None:
    """Add the options that print and install a script for completion."""
    for option, text in (
        ("--install-completion", "install shell completion, and say what it wrote"),
        ("--show-completion", "print the script that does it"),
    ):
        parser.add_argument(option, action=_Completion, nargs="?", metavar="bash|zsh|fish", help=text)


class _Completion(argparse.Action):
    """Does what its option says, and ends the command, as ``--version`` does."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[Any] | None,
        option_string: str | None = None,
    ) -> None:
        shell = shell_of(None if values is None else str(values))
        if option_string == "--show-completion":
            say(script(parser, shell))
        else:
            say(install(parser, shell))
        parser.exit()


def shell_of(name: str | None) -> str:
    """Return the shell that is named, or the user's own. Raises `UsageError` where there is no script for it."""
    shell = Path(os.environ.get("SHELL", "")).name if name is None else name
    if shell not in SHELLS:
        said = f"there is no completion for the shell {shell!r}" if shell else "SHELL names no shell"
        raise UsageError(f"{said}: give bash, zsh or fish")
    return shell


def install(parser: argparse.ArgumentParser, shell: str) -> str:
    """Write the script where `shell` looks for it, and return what to tell. Raises `UsageError` where that fails."""
    data = Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share")
    config = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    path = {
        "bash": data / "bash-completion" / "completions" / "atune",
        "zsh": data / "atune" / "completion.zsh",
        "fish": config / "fish" / "completions" / "atune.fish",
    }[shell]
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"cannot make the folder {path.parent}: {error.strerror or error}") from error
    write_output(str(path), script(parser, shell).encode() + b"\n", private=False)
    hint = {
        "bash": f"a new bash with the package bash-completion reads it; without, add to ~/.bashrc: source {path}",
        "zsh": f"add this line to ~/.zshrc: source {path}",
        "fish": "a new fish completes atune's options",
    }
    return f"completion {path}\n           {hint[shell]}"


def script(parser: argparse.ArgumentParser, shell: str) -> str:
    """Return what completes the commands and options of `parser` in `shell`."""
    if shell == "fish":
        return "\n".join(_fish(parser))
    begin = ["autoload -U +X bashcompinit && bashcompinit"] if shell == "zsh" else []
    return "\n".join([*begin, *_bash(parser)])


def _bash(parser: argparse.ArgumentParser) -> Iterator[str]:
    commands = _commands(parser)
    yield "_atune() {"
    yield f"  local words='{' '.join([*commands, *_options(parser)])}'"
    yield '  if [ "$COMP_CWORD" -gt 1 ]; then case "${COMP_WORDS[1]}" in'
    for name, command in commands.items():
        inner = _commands(command)
        known = [*inner, *_options(command), *(option for one in inner.values() for option in _options(one))]
        yield f"    {name}) words='{' '.join(dict.fromkeys(known))}' ;;"
    yield "  esac; fi"
    yield '  COMPREPLY=($(compgen -W "$words" -- "${COMP_WORDS[COMP_CWORD]}"))'
    yield "}"
    yield "complete -o default -F _atune atune"


def _fish(parser: argparse.ArgumentParser) -> Iterator[str]:
    for option in _options(parser):
        yield f"complete -c atune -n __fish_use_subcommand -l {option.removeprefix('--')}"
    for name, command in _commands(parser).items():
        yield f"complete -c atune -n __fish_use_subcommand -a {name}"
        inner = _commands(command)
        seen = f"'__fish_seen_subcommand_from {name}'"
        if inner:
            yield f"complete -c atune -n {seen} -a '{' '.join(inner)}'"
        for option in dict.fromkeys(o for one in (command, *inner.values()) for o in _options(one)):
            yield f"complete -c atune -n {seen} -l {option.removeprefix('--')}"


def _commands(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    groups = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    return {name: command for group in groups for name, command in group.choices.items()}


def _options(parser: argparse.ArgumentParser) -> list[str]:
    shown = (action for action in parser._actions if action.help != argparse.SUPPRESS)
    return [text for action in shown for text in action.option_strings if text.startswith("--")]
