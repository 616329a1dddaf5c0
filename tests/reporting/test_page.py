"""The report's page: what its data says of a run, and what it says where no script runs."""

from __future__ import annotations

import hashlib
import html
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from event_streams import Stream, write
from reporting.test_look import DATA

from atune.journal.reader import replay
from atune.journal.result import Result
from atune.model.artifact import what_failed
from atune.model.candidate import BASELINE
from atune.reporting.export import ranking, rows
from atune.reporting.report import PAGE_FIELDS, PAGE_LIBRARIES, page_of, report
from atune.reporting.summary import failure_groups, summary

RESULTS = Path(__file__).parents[2] / "bench" / "results"
GPU = RESULTS / "resume" / "half.jsonl"
"""288 candidates of an H200, as measured. The run was killed at half and resumed."""
LAYOUTS = RESULTS / "layouts" / "uneven.jsonl"
"""72 candidates of an H200, with registers, occupancy, rooflines and six failures, two of them hopeless compiles."""
PAGE = Path(__file__).parents[2] / "atune" / "reporting" / "report_page.html"


def data_of(page: str) -> dict[str, Any]:
    """Return the data that the page's script draws."""
    [text] = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page, flags=re.S)
    found: dict[str, Any] = json.loads(text)
    return found


def parts_of(page: str) -> dict[str, dict[str, Any]]:
    """Return the page's parts by their id or kind."""
    return {part.get("id", part["kind"]): part for part in data_of(page)["parts"]}


def rows_of(page: str) -> list[dict[str, Any]]:
    """Return the rows that the page's table and plots show, by the names of their fields."""
    data = data_of(page)
    return [dict(zip(data["fields"], row, strict=True)) for row in data["rows"]]


def page_from(stream: Stream) -> str:
    return page_of(stream.finished().events)


def without_script(page: str) -> str:
    """Return the text of a page that runs no script, between its tags."""
    body = re.sub(r"<(script|style).*?</\1>|<wbr>", "", page, flags=re.S)
    return html.unescape(" ".join(re.sub(r"<[^>]*>", " ", body).split()))


def test_the_page_has_the_rows_of_the_export_the_winner_first() -> None:
    result, page = replay(LAYOUTS), report(LAYOUTS)
    found, records = rows_of(page), ranking(result)
    assert found[0]["mark"] == "winner" and found[0]["latency_ms"] == result.latency_ms and len(found) == result.total
    for row, record, exported in zip(found, records, rows(result, records), strict=True):
        assert row == {name: exported[name] for name in PAGE_FIELDS} | {"config": record.config}
    known = json.loads(json.dumps(summary(result)))
    assert data_of(page)["summary"] == {name: value for name, value in known.items() if name != "failures"}


def test_a_large_run_leaves_out_the_slowest_and_stays_below_two_megabytes(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Stream(total=6000)
    for i in range(6000):
        config = {"block_M": i % 16, "block_N": i // 16 % 16, "threads": 32 * (i // 256), "layout": f"layout {i % 7}"}
        if i % 10:
            stream.candidate(i, 1.0 + (i * 7919 % 6000) / 1000, **config)
        else:
            stream.proposed(i, **config).lowered(i).build_failed(i, f"error e{i}\n" + "detail " * 500)
    page = page_from(stream)
    assert len(page.encode()) < 2_000_000
    data, kept = data_of(page), rows_of(page)
    assert (len(kept), data["records"], data["timed"]) == (3000, 6000, 5400)
    assert max(row["latency_ms"] for row in kept) < 5.0 and (len(data["spans"]), data["all_spans"]) == (3000, 11400)
    assert "more reasons" in parts_of(page)["failures"]["text"]
    monkeypatch.setattr("atune.reporting.report.MOST_PAGE_BYTES", len(page.encode()) - 1)
    assert [row["index"] for row in rows_of(page_from(stream))] == [row["index"] for row in kept[:1500]]
    monkeypatch.setattr("atune.reporting.report.MOST_PAGE_BYTES", 10**5)
    assert data_of(page_from(stream))["parts"][0]["written"][0].startswith("winner     block_M=")


class Links(HTMLParser):
    """Collects what a page would load."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found += [value or "" for name, value in attrs if name in ("src", "href")]


def hostile(tmp_path: Path) -> Path:
    """A journal whose every text tries to become a part of the page."""
    text = "</script><script>document.title='owned'</script><img src=x onerror=alert(1)><!--\x1b"
    stream = Stream(total=3, default=0).candidate(0, 1.0, mode=text, **{"<b>": "@DATA@ @PAGE@"}).build_failed(1, text)
    stream.candidate(2, 2.0, mode="b", **{"<b>": "c"})
    return write(tmp_path / "hostile.jsonl", stream.final({0: [1.0, 1.0], 2: [2.0, 2.0]}).finished().events)


def test_the_page_loads_nothing_and_no_text_of_a_journal_gets_out_of_its_data(tmp_path: Path) -> None:
    for journal in (DATA, hostile(tmp_path)):
        page = report(journal)
        links = Links()
        links.feed(page)
        assert links.found == ["data:,"] and "default-src 'none'" in page
        assert page.count("<script") == page.count("</script") == 2 + len(PAGE_LIBRARIES) and "<img" not in page
    assert "\x1b" not in page and "'<b>'" not in page
    assert rows_of(page)[0]["config"]["<b>"] == "@DATA@ @PAGE@"


def test_without_a_script_the_page_has_the_text_of_the_screen_and_a_table() -> None:
    result, text = replay(GPU), without_script(report(GPU))
    assert result.best is not None and text.startswith("gemm")
    assert "block_M=128, block_N=256" in text and f"latency {result.latency_ms:.4g} ms" in text
    assert "candidates 288: 288 measured" in text and text.count(" timing") > 280


def test_failures_have_their_output_and_an_example() -> None:
    found = parts_of(report(DATA))["failures"]["items"]
    for group, one in zip(failure_groups(replay(DATA).records), found, strict=True):
        assert one["title"] == f"{group.count:,} {what_failed(group.kind)}" and group.message in one["text"]
    assert found[0]["written"] and found[0]["example"].startswith("For example, candidate ")
    example = parts_of(report(LAYOUTS))["failures"]["items"][0]["example"]
    assert example.startswith("For example, candidate 40: block_rows=2")


def test_the_card_says_how_much_faster_where_when_and_by_which_command() -> None:
    page, result = report(LAYOUTS), replay(LAYOUTS)
    card = parts_of(page)["card"]
    assert result.speedup_over_default is not None and result.best is not None
    first, latency, last = card["figures"]
    assert (
        first[0] == f"{result.speedup_over_default[1]:.2f}×" and "faster than the default configuration (" in first[1]
    )
    assert latency == [f"{result.latency_ms:.4g} ms", "latency"] and last[0] == f"{result.reference_ratio:.2f}×"
    assert card["origin"] == ["NVIDIA H200, cuda (sm_90a)", "2026-11-23 16:47 UTC", "26 s"]
    assert card["config"] == result.best.config
    assert card["counts"] == [["22 measured", False], ["6 failed", True], ["44 duplicate", False]]
    assert "<title>scaled rows of 2560 rows=4096, columns=2560</title>" in page
    environment = dict(parts_of(page)["environment"]["rows"])
    assert environment["tilelang"] == "0.1.15" and environment["benchmark"].startswith("n_warmup=3, n_repeat=20")


def test_a_default_outside_of_the_space_that_wins_is_on_every_part_of_the_page() -> None:
    stream = Stream(total=4, default=BASELINE).proposed(BASELINE, block=7).lowered(BASELINE).built(BASELINE)
    stream.measured(BASELINE, 1.0)
    for index in range(4):
        stream.candidate(index, 2.0 + index, block=index % 2, threads=index // 2)
    page = page_from(stream.final({BASELINE: [1.0] * 3, 0: [2.0] * 3}))
    assert any("Nothing in the space beats the default" in note for note in parts_of(page)["card"]["notes"])
    assert data_of(page)["winner"] == BASELINE
    found = [(row["index"], row["times_winner"]) for row in rows_of(page)]
    assert found == [(BASELINE, 1.0), (0, 2.0), (1, 3.0), (2, 4.0), (3, 5.0)]


def test_the_source_is_on_the_page_where_it_was_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Result, "kernel_source", "int a<b;\n" * 3)
    monkeypatch.setattr("atune.reporting.report.SOURCE", 9)
    source = parts_of(report(LAYOUTS))["source"]
    assert source["summary"] == "3 lines, as compiled" and source["written"] == ["int a<b;", "… 18 more characters"]


def test_else_the_page_has_the_command_that_shows_it() -> None:
    command = parts_of(report(LAYOUTS))["source"]["command"]
    assert command == f"atune explain {LAYOUTS} {replay(LAYOUTS).best_index} --source"


def test_the_final_begins_once_all_else_has_ended() -> None:
    *others, final = sorted(data_of(report(LAYOUTS))["spans"], key=lambda span: span[1] == "final")
    on, kind, since, until, _, n = final
    assert (on, kind, n) == ("0", "final", 7) and max(span[3] for span in others) == since < until


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
