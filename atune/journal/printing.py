"""Text of a journal made safe to print: it may come from a stranger."""

from __future__ import annotations

from atune.model.candidate import Config


def describe_config(config: Config) -> str:
    """Return `config` as ``name=value`` words, safe to print: no control characters, whoever wrote the journal."""
    return printable(", ".join(f"{name}={value!r}" for name, value in config.items()))


def printable(text: str) -> str:
    """Return `text` as one line without control characters: a journal may come from a stranger."""
    return "".join(c if c.isprintable() else " " for c in text)
