"""Write the table of `atune tune`'s options into docs/options.md, from the options themselves: make tables."""

from __future__ import annotations

from pathlib import Path

from atune.cli.main import SHARED
from atune.cli.parsing import default_of, skips
from atune.cli.tune_options import groups
from atune.model.options import Field

PAGE = Path(__file__).parent / "options.md"
BEGIN, END = "<!-- options: make tables writes them -->\n", "<!-- end of options -->\n"


def table() -> str:
    """Return the table."""
    rows = ["| option | default | is |", "|---|---|---|"]
    rows += [_row(field) for fields in groups().values() for field in fields]
    rows += [f"| `{option}` | off | {text[0].upper()}{text[1:]}. |" for option, text in SHARED.items()]
    return "\n".join([*rows, "| `--help` | | List the options. |"]) + "\n"


def _row(field: Field) -> str:
    option = field.option
    flag, text = option.flag, option.doc.replace("``", "`")
    spelled = f"`{flag} {option.metavar}`" if option.metavar else f"`{flag}`"
    if option.action == "switch" or (field.default is True and not skips(field)):
        spelled += f", `--no-{flag.removeprefix('--')}`"
    default = default_of(field) or ("off" if field.plain is bool else "none")
    text = f"Do not {text[0].lower()}{text[1:]}" if skips(field) else text
    more = f" [More]({option.page})." if option.page else ""
    cells = (cell.replace("|", "\\|") for cell in (spelled, default, f"{text}{more}"))
    return f"| {' | '.join(cells)} |"


def page() -> str:
    """Return the page as it should be."""
    text = PAGE.read_text()
    begin, end = text.index(BEGIN) + len(BEGIN), text.index(END)
    return f"{text[:begin]}\n{table()}\n{text[end:]}"


if __name__ == "__main__":
    PAGE.write_text(page())
