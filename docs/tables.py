"""Write the table of options into its page, from the options themselves: make tables."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from atune.frontends.cli.parsing import SHARED, default_of, first_sentence, skips
from atune.frontends.cli.tune_options import groups

DOCS = Path(__file__).parent


def of_tune() -> Iterable[tuple[str, str]]:
    """Yield the rows of `atune tune`'s options: what ``--help`` says of them, and where the pages say more."""
    for field in (field for fields in groups().values() for field in fields):
        option = field.option
        spelled = f"`{f'{option.flag} {option.metavar}'.rstrip()}`".replace("|", "`, `")
        if field.default is True and not skips(field):
            spelled += f", `--no-{option.flag.removeprefix('--')}`"
        text = f"do not {first_sentence(option.doc)}" if skips(field) else first_sentence(option.doc)
        default = f" [default: {shown}]" if (shown := default_of(field)) else ""
        more = f" ([more]({option.page}))" if option.page else ""
        yield spelled, text + default + more
    for flag, text in SHARED.items():
        yield f"`{flag}`", text
    yield "`--help`", "show the options"


TABLES: dict[tuple[str, str], Callable[[], Any]] = {
    ("options.md", "options of tune"): of_tune,
}
"""The tables, by page and by the mark above and below them."""


def page(name: str) -> str:
    """Return the page as it should be."""
    text = (DOCS / name).read_text()
    for (of, mark), rows in TABLES.items():
        if of == name:
            lines = ["| option | is |", "|---|---|"]
            lines += [f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |" for row in rows()]
            before, _, rest = text.partition(f"<!-- {mark}: make tables writes them -->\n")
            _, found, after = rest.partition(f"<!-- end of {mark} -->\n")
            assert found, f"{name} has no place for the {mark}"
            shown = "\n".join(lines)
            text = f"{before}<!-- {mark}: make tables writes them -->\n\n{shown}\n\n<!-- end of {mark} -->\n{after}"
    return text


if __name__ == "__main__":
    for name in {name for name, _ in TABLES}:
        (DOCS / name).write_text(page(name))
