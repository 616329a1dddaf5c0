"""The report's page: what a reader finds on it where no script runs."""

from __future__ import annotations

import hashlib
import html
import json
import re
import shlex
from pathlib import Path
from typing import Any

import msgspec
import pytest
from event_streams import Stream, write
from reporting.test_look import DATA, RESULTS
from reporting.test_report import without_script

from atune.frontends.cli.help import Parser
from atune.frontends.cli.parsing import add_options, with_flags
from atune.journal.reader import read
from atune.journal.replay import replay
from atune.journal.result import Result
from atune.model.artifact import StaticFacts, what_failed
from atune.model.candidate import BASELINE
from atune.model.options import Field
from atune.model.settings import BenchmarkSettings, CompileSettings
from atune.reporting.candidates import LONG, MOST, candidates_section, columns, differs, facts
from atune.reporting.export import ranking
from atune.reporting.importance import axis_importance
from atune.reporting.page import command_of, kernel_section, source_section
from atune.reporting.plot import linear_ticks, log_ticks
from atune.reporting.plots import plot_data, plot_sections
from atune.reporting.report import page_of, report
from atune.reporting.summary import failure_groups
from atune.reporting.timeline import Timeline

LAYOUTS = RESULTS / "layouts" / "uneven.jsonl.xz"
"""72 candidates of an H200, with registers, occupancy, rooflines and six failures, two of them hopeless compiles."""
PAGE = Path(__file__).parents[2] / "atune" / "reporting" / "report_page.html"


def table_of(page: str) -> list[dict[str, str]]:
    """Return the rows of the page's table by the titles of its columns."""
    [inside] = re.findall(r'<table id="candidates">(.*?)</table>', page, flags=re.S)
    titles = [html.unescape(text) for text in re.findall(r"<th scope[^>]*>(.*?)</th>", inside)]
    rows = re.findall(r"<tr[^>]*>((?:<td.*?</td>)+)</tr>", inside, flags=re.S)
    cells = ([html.unescape(text) for text in re.findall(r"<td[^>]*>(.*?)</td>", row, flags=re.S)] for row in rows)
    return [dict(zip(titles, row, strict=True)) for row in cells]


def test_the_table_has_every_candidate_the_winner_first() -> None:
    result, rows = replay(LAYOUTS), table_of(report(LAYOUTS))
    assert len(rows) == result.total == 72 and rows[0]["candidate"] == str(result.best_index)
    assert rows[0]["mark"] == "winner" and rows[0]["latency, ms"] == f"{result.latency_ms:.4g}"
    assert [row["candidate"] for row in rows] == [str(record.index) for record in ranking(result)]
    assert [row["what became of it"][:12] for row in rows].count("same code as") == result.duplicates == 44
    outcomes = [row["what became of it"] for row in rows]
    assert outcomes[0] == "final timing" and "first timing" in outcomes


def test_the_table_has_a_column_for_each_fact_that_differs_and_none_that_does_not() -> None:
    result, rows = replay(LAYOUTS), table_of(report(LAYOUTS))
    assert {
        "registers",
        "threads a block",
        "occupancy, blocks",
        "fragment slots",
        "code, bytes",
        "GB/s",
        "of the memory, %",
    } <= rows[0].keys()
    assert not {"GFLOP/s", "of the tensor cores, %"} & rows[0].keys()  # nothing to multiply
    same = [fact.title for fact in facts(result) if not differs(fact, result)]
    assert same and not set(same) & rows[0].keys()
    best = result.best
    assert best is not None and best.machine is not None and best.roofline is not None
    assert rows[0]["registers"] == str(best.machine.registers)
    assert rows[0]["GB/s"] == f"{best.roofline.gbytes_s:,.0f}"
    assert rows[0]["of the memory, %"] == f"{100 * (best.roofline.memory_share or 0):.1f}"


def test_an_axis_of_one_value_is_no_column() -> None:
    stream = Stream(total=2).candidate(0, 1.0, block=1, fixed="a").candidate(1, 2.0, block=2, fixed="a")
    assert "fixed" not in {c.title for c in columns(Result.from_events(stream.finished().events))}


def test_values_that_begin_alike_are_kept_apart() -> None:
    long = "x" * LONG
    stream = Stream(total=2).candidate(0, 1.0, x=1, layout=f"{long}1").candidate(1, 2.0, x=2, layout=f"{long}2")
    section = candidates_section(Result.from_events(stream.finished().events))
    assert [row["layout"] for row in table_of(section)] == [f"{long[1:]}…"] * 2
    assert f'title="{long}1"' in section and f'title="{long}2"' in section


def test_a_table_too_long_for_a_page_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("atune.reporting.candidates.MOST", 500)
    stream = Stream(total=3).candidate(0, 3.0).candidate(1, 1.0).candidate(2, 2.0)
    section = candidates_section(Result.from_events(stream.finished().events))
    assert [row["candidate"] for row in table_of(section)] == ["1", "2"] and "Shown are 2 of 3" in section
    assert MOST > 500


def test_a_stranger_s_text_is_escaped_in_the_table(tmp_path: Path) -> None:
    stream = Stream(total=2).candidate(0, 1.0, mode="<i>\n\x1b", **{"<b>": 1})
    page = report(write(tmp_path / "j", stream.candidate(1, 2.0, mode="b", **{"<b>": 2}).finished().events))
    assert table_of(page)[0]["mode"] == "<i>  " and "<i>" not in page and "<b>" in table_of(page)[0]


def test_failures_stand_open_with_their_output_and_an_example() -> None:
    page = report(DATA)
    text, result = without_script(page), replay(DATA)
    for group in failure_groups(result.records):
        assert f"{group.count:,} {what_failed(group.kind)}" in text and group.message in html.unescape(text)
    assert "For example candidate" in text
    assert "For example candidate 40: block_rows=2" in without_script(report(LAYOUTS))


def test_the_environment_and_the_title_need_no_script() -> None:
    page = report(LAYOUTS)
    text = without_script(page)
    assert "<title>scaled rows of 2560 rows=4096, columns=2560</title>" in page
    assert "tilelang 0.1.15" in text and "benchmark n_warmup=3, n_repeat=20" in text


def test_the_final_is_on_the_device_s_line_of_time() -> None:
    timeline = Timeline()
    events = read(LAYOUTS)
    for event in events:
        timeline.add(event)
    *before, (kind, since, until, note) = timeline.device["0"]
    assert (kind, note) == ("final", "of 7 candidates") and since < until
    ends = [spans[-1][2] for spans in timeline.compile.values()] + [before[-1][2]]
    assert since == max(ends)


def test_ticks_are_round() -> None:
    assert linear_ticks(0, 43.4) == [0, 10, 20, 30, 40]
    assert linear_ticks(41, 43, 3) == [41, 42, 43]
    assert linear_ticks(5, 5) == [5]
    assert log_ticks(0.0135, 0.47) == [0.02, 0.05, 0.1, 0.2]
    assert log_ticks(1e-3, 1e4) == [0.001, 0.01, 0.1, 1, 10, 100, 1000, 10000]
    assert log_ticks(0.181, 0.184) == [0.181, 0.182, 0.183, 0.184]
    assert len(log_ticks(1e-30, 1e30)) <= 8


def test_the_card_says_how_much_faster_where_when_and_by_which_command() -> None:
    page = report(LAYOUTS)
    [card] = re.findall(r'<section id="winner">(.*?)</section>', page, flags=re.S)
    result, text = replay(LAYOUTS), html.unescape(without_script(card)).replace("\u00a0", " ")
    assert result.speedup_over_default is not None and result.best is not None
    assert text.startswith(f"{result.speedup_over_default[1]:.2f}× faster than the default configuration (")
    assert f"{result.latency_ms:.4g} ms latency {result.reference_ratio:.2f}× faster than the reference" in text
    assert f"block_rows={result.best.config['block_rows']}, threads=" in text
    assert "NVIDIA H200, cuda (sm_90a) · 2026-11-23 16:47 UTC · 26 s · atune tune" in text
    [config] = re.findall(r'id="config" data-config="(.*?)"', card)
    assert json.loads(html.unescape(config)) == result.best.config


def test_a_default_that_wins_is_said_and_not_compared_with_itself() -> None:
    stream = Stream(total=2, default=0).candidate(0, 1.0).candidate(1, 2.0).final({0: [1.0] * 3, 1: [2.0] * 3})
    text = without_script(page_of(stream.finished().events))
    assert "1 ms latency" in text and "No configuration beats the default." in text
    assert "1.00×" not in text


def test_a_default_outside_of_the_space_that_wins_is_on_every_part_of_the_page() -> None:
    stream = Stream(total=4, default=BASELINE).proposed(BASELINE, block=7).lowered(BASELINE).built(BASELINE)
    stream.measured(BASELINE, 1.0)
    for index in range(4):
        stream.candidate(index, 2.0 + index, block=index % 2, threads=index // 2)
    events = stream.final({BASELINE: [1.0] * 3, 0: [2.0] * 3}).finished().events
    result, page = Result.from_events(events), page_of(events)
    assert result.best_index == BASELINE and "No configuration beats the default" in without_script(page)
    data = plot_data(result, axis_importance(result), Timeline())
    assert [row[0] for row in data["candidates"]] == [BASELINE, 0, 1, 2, 3] and data["winner"] == BASELINE
    assert [axis["labels"] for axis in data["axes"]] == [["0", "1"], ["0", "1"]]  # those of the space alone
    assert data["candidates"][0][3:] == [None, None]
    assert [row["candidate"] for row in table_of(page)] == ["baseline", "0", "1", "2", "3"]
    assert [row["× winner"] for row in table_of(page)] == ["1.00", "2.00", "3.00", "4.00", "5.00"]


def test_the_command_starts_such_a_run() -> None:
    """The command line reads every setting off the command as it was, and those at their default are not in it."""
    fields = {kind: with_flags(kind) for kind in (CompileSettings, BenchmarkSettings)}
    texts = {"target_host": "c", "method": "cuda_graph"}

    def other(field: Field) -> Any:
        return not field.default if field.plain is bool else texts.get(field.name, 7)

    changed = {kind: kind(**{field.name: other(field) for field in fields[kind]}) for kind in fields}
    header = replay(LAYOUTS).header
    assert header is not None
    settings = {"compile": changed[CompileSettings], "benchmark": changed[BenchmarkSettings], "seed": 3}
    budget = {"candidates": 5, "seconds": 90.0, "percent": None}
    started = msgspec.structs.replace(
        header, origin="a b.py:K", strategy="forest", settings=msgspec.to_builtins({**settings, "budget": budget})
    )
    words = shlex.split(command_of(started))
    begin = ["atune", "tune", "a b.py:K", "--strategy", "forest", "--budget", "5", "--budget", "90s", "--seed", "3"]
    assert words[: len(begin)] == begin
    parser = Parser()
    add_options(parser, [field for group in fields.values() for field in group])
    read = vars(parser.parse_args(words[len(begin) :]))
    assert read == {field.name: other(field) for group in fields.values() for field in group}
    plain = msgspec.structs.replace(header, origin="k.py", settings={"budget": {}, "compile": {}})
    assert command_of(plain) == f"atune tune k.py --strategy {header.strategy}"
    assert command_of(msgspec.structs.replace(header, origin="")) == ""


def test_times_the_winner_compares_timings_of_one_kind() -> None:
    stream = Stream(total=3).candidate(0, 1.0).candidate(1, 2.0).candidate(2, 4.0).final({0: [2.0] * 3, 1: [3.0] * 3})
    section = candidates_section(Result.from_events(stream.finished().events))
    assert [(row["candidate"], row["× winner"]) for row in table_of(section)] == [
        ("0", "1.00"), ("1", "1.50"), ("2", "4.00"),
    ]  # fmt: skip
    assert section.count('<tr class="winner"') == 1


VENDORED = {
    "d3.min.js": ("v7.9.0", "f2094bbf6141b359722c4fe454eb6c4b0f0e42cc10cc7af921fc158fceb86539"),
    "plot.umd.min.js": ("v0.6.17", "4358086467740777dd788d6b27a95cebdbaefdd50c730a3060117073bd7134cb"),
}
"""Version and SHA-256 of each script in its package: d3 and @observablehq/plot."""


def test_the_libraries_are_those_of_the_registry_with_their_licences() -> None:
    page, folder = report(LAYOUTS), PAGE.parent / "vendored"
    for name, (version, digest) in VENDORED.items():
        script, licence = (folder / name).read_bytes(), folder / f"{name.partition('.')[0]}.LICENSE"
        assert hashlib.sha256(script).hexdigest() == digest and version.encode() in script[:200]
        assert f"<script>/*\n{licence.read_text()}*/\n{script.decode()}</script>" in page
        assert "Permission to use, copy, modify" in licence.read_text()
    known = {*VENDORED, *(f"{name.partition('.')[0]}.LICENSE" for name in VENDORED)}
    assert {path.name for path in folder.iterdir()} == known


def test_a_page_of_a_large_run_is_below_two_megabytes() -> None:
    stream = Stream(total=6000)
    for i in range(6000):
        config = {"block_M": i % 16, "block_N": i // 16 % 16, "threads": 32 * (i // 256), "layout": f"layout {i % 7}"}
        if i % 10:
            stream.candidate(i, 1.0 + (i * 7919 % 6000) / 1000, **config)
        else:
            stream.proposed(i, **config).lowered(i).build_failed(i, f"error e{i}\n" + "detail " * 500)
    page = page_of(stream.finished().events)
    assert len(page.encode()) < 2_000_000
    assert "The fastest 5,000 of 5,400 are shown." in page and "more reasons are in the journal" in page


def test_the_heat_map_is_of_the_two_axes_that_matter_most() -> None:
    result = replay(LAYOUTS)
    mattered = axis_importance(result)
    data = plot_data(result, mattered, Timeline())
    assert mattered is not None
    first, second = [axis["name"] for axis in data["axes"]][:2]
    assert [first, second] == [*mattered.shares][:2]
    assert f'<section id="heat" data-plot hidden><h2>{first} and {second}</h2>' in plot_sections(result, mattered, data)
    [best] = [row for row in data["candidates"] if row[0] == result.best_index]
    assert result.best is not None
    assert data["axes"][0]["labels"][best[3]] == str(result.best.config[first])


def test_parallel_coordinates_begin_at_three_axes() -> None:
    def sections(**more: int) -> str:
        stream = Stream(total=4)
        for i in range(4):
            stream.candidate(i, 1.0 + i, a=i % 2, b=i // 2, **dict.fromkeys(more, i))
        result = Result.from_events(stream.finished().events)
        mattered = axis_importance(result)
        return plot_sections(result, mattered, plot_data(result, mattered, Timeline()))

    assert 'id="parallel"' in sections(c=1) and 'id="parallel"' not in sections() and 'id="heat"' in sections()


def test_facts_layouts_and_rooflines_of_the_winner_stand_on_the_page() -> None:
    result, text = replay(LAYOUTS), html.unescape(without_script(kernel_section(replay(LAYOUTS))))
    assert result.best is not None and result.best.machine is not None and result.roofline is not None
    assert f"registers {result.best.machine.registers} a thread" in text and "fragment s " in text
    assert f"memory 3.246 TB/s {100 * (result.roofline.memory_share or 0):.0f} %, which bounds it" in text
    assert "reference" not in text and "tensor cores" not in text


def test_the_source_is_on_the_page_where_it_was_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    result = replay(LAYOUTS)
    assert f"atune explain {LAYOUTS} {result.best_index} --source" in without_script(source_section(result))
    result.__dict__["kernel_source"] = "int a<b;\n" * 3
    section = source_section(result)
    assert "3 lines" in section and "int a&lt;b;" in section
    monkeypatch.setattr("atune.reporting.page.SOURCE", 9)
    assert "… 18 more characters" in source_section(result)


def luminance(colour: str) -> float:
    """Return the relative luminance of ``#rrggbb`` (WCAG 2.2)."""
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_and_marks_stand_out_as_wcag_aa_asks(scheme: str) -> None:
    found = re.findall(r":root \{([^}]*)\}", PAGE.read_text())
    colours = {}
    for name, value in re.findall(r"--([\w-]+): (#\w+)", found[scheme == "dark"]):
        colours[name] = value if len(value) == 7 else "#" + "".join(2 * c for c in value[1:])
    for ground in ("bg", "card"):
        for text in ("fg", "soft", "bad"):
            assert contrast(colours[text], colours[ground]) >= 4.5, (text, ground)
        for shape in ("a", "b", "c", "bad"):
            assert contrast(colours[shape], colours[ground]) >= 3, (shape, ground)


def test_facts_that_are_not_known_differ_from_none() -> None:
    stream = Stream(total=2).candidate(0, 1.0).candidate(1, 2.0).finished()
    result = Result.from_events(stream.events)
    assert result.records[0].facts == StaticFacts(threads=128)
    assert "threads a block" not in {c.title for c in columns(result)}
