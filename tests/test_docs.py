"""README and docs say what is so: their examples run, and their tables and links hold."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable
from contextlib import redirect_stdout
from pathlib import Path
from typing import get_args

import pytest
import tables
from event_streams import Stream
from pages import FENCED, PAGES, ROOT, write_files
from programs import printed_by

import atune
import atune.sets
from atune.engine.settings import PARTS
from atune.frontends.cli.main import make_parser
from atune.frontends.decorator_options import PRESETS
from atune.journal.events import SCHEMA, AnyEvent, encode
from atune.journal.reader import parse_line
from atune.journal.result import Result
from atune.model.artifact import FailureKind
from atune.reporting.summary import summary
from atune.stages.check import RTOL

README, SERVICE = PAGES[0], ROOT / "docs" / "how" / "service.md"
API, OPTIONS, CONCEPTS, FAILURES, JOURNAL, DECORATOR, CACHE = (
    ROOT / "docs" / f"{name}.md" for name in ("api", "options", "concepts", "failures", "journal", "decorator", "cache")
)


def section(page: Path, heading: str) -> str:
    """Return the text below `heading`, up to the next heading of its level or a higher one."""
    level, text = heading.split(" ")[0], page.read_text()
    start = text.index(f"\n{heading}\n") + len(heading) + 2
    end = re.search(rf"^#{{1,{len(level)}}} ", text[start:], re.MULTILINE)
    return text[start : start + end.start()] if end else text[start:]


def first_column(text: str) -> list[str]:
    """Return what stands in backticks in the first column of the tables in `text`."""
    return [name for row in re.findall(r"^\|([^|]*)\|", text, re.MULTILINE) for name in re.findall(r"`([^`]+)`", row)]


def anchors(page: Path) -> set[str]:
    """Return the anchors that GitHub gives `page`'s headings."""
    headings = re.findall(r"^#+ (.+)$", re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


EXAMPLES = {
    "scale.py": "block.*threads",
    "transpose.py": r"best: \{'block_M': ",
    "set.py": r"3 of 3 have a winner[\s\S]*\{'block': \d+, 'threads': \d+\}\n",
    "shapes.py": r"262144 \{'block': \d+, 'threads': \d+\} [\d.]+ ms\n",
    "service.py": r"answer: 8192\.0\ntuned: \{'block': \d+\}\nanswer: 8192\.0\n",
    "strategy.py": r"3 [\d.]+ (?=.*\n4 [\d.]+ )(?=.*\n2 [\d.]+ ).*\{'block_M': ",
    "watch.py": r"s  engine +RunStarted\n.*s  engine +RunFinished\n",
    "debug.py": "the reference's: True",
    "dynamic.py": r"True\n",
    "logs.py": "run_finished",
    "task.py": "",
    "faster.py": "",
    "ranks.py": r"(?=.*rank 0: (\w{64})).*rank 1: \1",
}
"""The files of the pages, and what each prints."""
LAUNCHED = {"ranks.py": ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")}
"""What starts a file, where it is not Python alone."""


PATH = {
    "PYTHONPATH": os.pathsep.join(filter(None, [str(Path(atune.__file__).parents[1]), os.environ.get("PYTHONPATH")]))
}
WARNINGS = ("-W", "error", "-W", "ignore:Failing to pass a value to the 'type_params' parameter:DeprecationWarning")
"""The second is tilelang's, with Python 3.13."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the pages' example files, each under the name that the page gives it."""
    files = tmp_path_factory.mktemp("readme")
    write_files(files)
    return files


@pytest.fixture(scope="module")
def printed(folder: Path) -> dict[str, str]:
    """What the files print, or how they fail."""
    return printed_by([name for name in EXAMPLES if name not in LAUNCHED], folder, PATH, WARNINGS)


def run(folder: Path, *command: str) -> str:
    """Return what the command printed in the folder."""
    command, env = (sys.executable, *WARNINGS, *command), {**os.environ, **PATH}
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.newest
@pytest.mark.parametrize("name", EXAMPLES)
def test_each_example_runs(folder: Path, printed: dict[str, str], name: str) -> None:
    output = run(folder, *LAUNCHED[name], name) if name in LAUNCHED else printed[name]
    assert re.search(EXAMPLES[name], output, re.DOTALL), output


@pytest.mark.newest
def test_the_first_example_runs(folder: Path) -> None:
    """Also as the README's first command."""
    assert len([line for line in (folder / "scale.py").read_text().splitlines() if line]) <= 13
    run(folder, "-m", "atune", "tune", "scale.py", "--quiet", "--target", "c")
    printed = run(folder, "-m", "atune", "replay", "latest", "--table")
    assert all(f"block={block}, threads={threads}" in printed for block in (256, 1024, 4096) for threads in (64, 128))


def test_the_log_of_the_web_service_is_as_shown(printed: dict[str, str]) -> None:
    """But for the figures. It has each event from info on, and no debug entry of single candidates."""
    [shown] = re.findall("```text\n(info .*?)```", SERVICE.read_text(), re.DOTALL)
    found, wanted = (re.sub(r"[\d.]+(e-\d+)?", "0", text).splitlines() for text in (printed["logs.py"], shown))
    assert set(wanted) <= set(found) and len({line.split()[2] for line in found if "_" in line}) == 1
    assert not {"candidate_proposed", "candidate_measured_details"} & set(printed["logs.py"].split())


def test_every_python_block_is_run() -> None:
    text = "".join(page.read_text() for page in PAGES)
    names = [name for name, _ in FENCED.findall(text)]
    assert sorted(names) == sorted(EXAMPLES) and text.count("```python") == len(names)


def test_each_page_of_the_site_is_in_its_navigation() -> None:
    listed = re.findall(r": ([\w/-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    there = {str(page.relative_to(ROOT / "docs")) for page in PAGES if page.is_relative_to(ROOT / "docs")}
    assert len(listed) == len(set(listed)) and set(listed) == there | {"changelog.md"}


def test_every_public_name_is_documented_once() -> None:
    """The classes of events by their tags, which `test_events_are_those_of_the_code` compares."""
    tags = {kind.__name__ for kind in get_args(AnyEvent)}
    modules = (atune, atune.errors, atune.events, atune.results, atune.sets)
    names = [name for module in modules for name in module.__all__ if name not in tags]
    rows = re.findall(r"^\| (.+?) \|", section(API, "## Public names"), re.MULTILINE)
    named = Counter(re.findall(r"`(\w+)`", " ".join(rows)))
    listed = section(API, "## Public names")
    assert [name for name in atune.__all__ if named[name] != 1] == []
    assert [name for name in names if f"`{name}`" not in listed] == [] and tags <= set(atune.events.__all__)


def help_of(*command: str) -> str:
    """Return the help of a command."""
    with redirect_stdout(io.StringIO()) as shown, pytest.raises(SystemExit):
        make_parser().parse_args([*command, "--help"])
    return shown.getvalue()


def flags_of(text: str) -> set[str]:
    return set(re.findall(r"--[a-z][a-z0-9-]+", text)) - {"--help"}


def test_every_option_of_tune_is_documented() -> None:
    """Where this fails, `make tables` writes the table anew."""
    options = re.findall(r"^  (?:-h, )?(--[a-z][a-z0-9-]+)", help_of("tune"), re.MULTILINE)
    rows = [spelled for spelled, _ in tables.of_tune()]
    assert options and all(any(row.startswith(f"`{option}") for row in rows) for option in options)
    assert len(rows) == len(options) <= 31 and tables.page("options.md") == OPTIONS.read_text()


POINTS = {"card": ("c", 13), "000": ("a", 37), "001": ("e", 14), "002": ("b", 55), "003": ("d", 31), "004": ("l", 27)}
"""The founding documents: the letter of their tests, and how many points each has."""


def test_each_point_of_the_founding_documents_has_one_test() -> None:
    """Where the page alone differs, `make tables` writes its tables anew."""
    for document, (letter, count) in POINTS.items():
        rows = list(tables.promised_by(f"test_{document}")())
        points = [re.findall(r"::test_([a-z]\d+)_", where) for _, where in rows]
        assert points == [[f"{letter}{number}"] for number in range(1, count + 1)]
        assert all(5 < len(said) <= 120 and not said.endswith(".") for said, _ in rows)
    assert tables.page(tables.PROMISES) == (tables.DOCS / tables.PROMISES).read_text()


def test_every_command_is_documented() -> None:
    there = re.findall(r"^  ([a-z]+)  ", help_of(), re.MULTILINE)
    assert sorted(re.findall(r"^\| `atune ([a-z]+)\b", OPTIONS.read_text(), re.MULTILINE)) == sorted(there)


@pytest.mark.parametrize(
    ("page", "commands"),
    [
        (JOURNAL, ("runs", "resume", "replay", "watch", "report", "export", "merge", "compare")),
        (CACHE, ("cache ls", "cache clear", "cache export")),
    ],
)
def test_every_option_of_the_commands_of_a_page_is_documented(page: Path, commands: tuple[str, ...]) -> None:
    there = flags_of("".join(help_of(*command.split()) for command in commands))
    assert flags_of(" ".join(first_column(section(page, "## Commands")))) == there


def test_the_line_of_the_journal_page_is_one() -> None:
    """Its checksum is right, so a reader written after the page can be tried on it."""
    [line] = re.findall(r"^\{\"crc\".*$", section(JOURNAL, "## Format"), re.MULTILINE)
    event = parse_line(line.encode() + b"\n")
    assert event is not None and encode(event) in line.encode()
    assert f"the version of the format: {SCHEMA}." in JOURNAL.read_text()


def test_json_keys_are_those_of_the_summary() -> None:
    names = [n for n in first_column(section(OPTIONS, "## JSON")) if re.fullmatch("[a-z_]+", n)]
    found = summary(Result.from_events(Stream().events))
    assert names == list(found) and json.dumps(found)


@pytest.mark.parametrize(
    ("page", "heading", "names"),
    [
        (FAILURES, "## By kind", get_args(FailureKind)),
        (DECORATOR, "## Presets", PRESETS),
        (JOURNAL, "## Going on", PARTS),
    ],
)
def test_a_table_has_the_names_of_the_code(page: Path, heading: str, names: Iterable[str]) -> None:
    assert first_column(section(page, heading)) == list(names)


def test_default_tolerances_are_those_of_the_code() -> None:
    rows = re.findall(r"^\| `(\w+)` \| ([\d.e-]+) \|$", section(CONCEPTS, "## Check"), re.MULTILINE)
    assert {name: float(rtol) for name, rtol in rows} == RTOL


BENCHES = sorted((ROOT / "bench").rglob("*.md"))


@pytest.mark.parametrize("page", [*PAGES, *BENCHES], ids=lambda page: str(page.relative_to(ROOT)))
def test_relative_links_resolve(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if "://" in target:
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        assert file.exists(), f"{page.name}: {target}"
        assert not anchor or anchor in anchors(file), f"{page.name}: {target}"
