"""The report's page: what its data says of a run, and what it says where no script runs."""

from __future__ import annotations

import hashlib
import html
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import msgspec
import pytest
from event_streams import Stream, timing, write
from reporting.test_look import DATA, GPU_JOURNALS, RESULTS

from atune.journal.events import BenchmarkStarted, CandidateMeasured, DeviceReady, RunStarted
from atune.journal.reader import replay
from atune.journal.result import Result
from atune.model.artifact import what_failed
from atune.model.candidate import BASELINE
from atune.model.device import DeviceInfo
from atune.reporting.export import ranking
from atune.reporting.importance import axis_importance
from atune.reporting.report import LIBRARIES, measured_on, page_of, report
from atune.reporting.summary import failure_groups

LAYOUTS = RESULTS / "layouts" / "uneven.jsonl"
"""72 candidates of an H200, with registers, occupancy, rooflines and six failures, two of them hopeless compiles."""
PAGE = Path(__file__).parents[2] / "atune" / "reporting" / "report_page.html"


def data_of(page: str) -> dict[str, Any]:
    """Return the data that the page's script draws."""
    [text] = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page, flags=re.S)
    found: dict[str, Any] = json.loads(text)
    return found


def parts_of(page: str) -> dict[str, dict[str, Any]]:
    """Return the page's parts by their kind or id, those of pairs among them."""
    found: dict[str, dict[str, Any]] = {}
    for part in data_of(page)["parts"]:
        for one in (part, *(part["items"] if part["kind"] == "pair" else ())):
            found[one.get("id", one["kind"])] = one
    return found


def table_of(page: str) -> list[dict[str, Any]]:
    """Return the rows of the page's table by the titles of its columns."""
    part = parts_of(page)["all"]
    titles = [column["title"] for column in part["columns"]]
    return [dict(zip(titles, row["cells"], strict=True)) for row in part["rows"]]


def page_from(stream: Stream) -> str:
    return page_of(stream.finished().events)


def without_script(page: str) -> str:
    """Return the text of a page that runs no script, between its tags."""
    body = re.sub(r"<(script|style).*?</\1>|<wbr>", "", page, flags=re.S)
    return html.unescape(" ".join(re.sub(r"<[^>]*>", " ", body).split()))


def test_the_table_has_every_candidate_the_winner_first() -> None:
    result, page = replay(LAYOUTS), report(LAYOUTS)
    rows = table_of(page)
    assert len(rows) == result.total == 72 and rows[0]["candidate"] == result.best_index
    assert rows[0]["mark"] == "winner" and rows[0]["latency, ms"] == result.latency_ms
    assert [row["candidate"] for row in rows] == [record.index for record in ranking(result)]
    assert [row["what became of it"][:12] for row in rows].count("same code as") == result.duplicates == 44
    assert rows[0]["what became of it"] == "final timing"
    assert [row["class"] for row in parts_of(page)["all"]["rows"]].count("winner") == 1


def test_the_table_has_a_column_for_each_fact_that_differs_and_none_that_does_not() -> None:
    result, rows = replay(LAYOUTS), table_of(report(LAYOUTS))
    assert {"registers", "threads a block", "occupancy, blocks"} <= rows[0].keys()
    best = result.best
    assert best is not None and best.machine is not None
    assert rows[0]["registers"] == best.machine.registers
    stream = Stream(total=2).candidate(0, 1.0, block=1, fixed="a").candidate(1, 2.0, block=2, fixed="a")
    assert not {"fixed", "threads a block"} & table_of(page_from(stream))[0].keys()


def test_times_the_winner_compares_timings_of_one_kind() -> None:
    stream = Stream(total=3).candidate(0, 1.0).candidate(1, 2.0).candidate(2, 4.0).final({0: [2.0] * 3, 1: [3.0] * 3})
    rows = table_of(page_from(stream))
    assert [(row["candidate"], row["× winner"]) for row in rows] == [(0, 1.0), (1, 1.5), (2, 4.0)]


def test_a_large_run_leaves_out_the_slowest_and_stays_below_two_megabytes() -> None:
    stream = Stream(total=6000)
    for i in range(6000):
        config = {"block_M": i % 16, "block_N": i // 16 % 16, "threads": 32 * (i // 256), "layout": f"layout {i % 7}"}
        if i % 10:
            stream.candidate(i, 1.0 + (i * 7919 % 6000) / 1000, **config)
        else:
            stream.proposed(i, **config).lowered(i).build_failed(i, f"error e{i}\n" + "detail " * 500)
    page = page_from(stream)
    assert len(page.encode()) < 2_000_000
    assert "The fastest 5,000 of 5,400 are shown." in parts_of(page)["rank"]["text"]
    assert "more reasons are in the journal" in parts_of(page)["failures"]["text"]
    assert "Shown are 3,000 of 6,000" in parts_of(page)["all"]["text"] and len(table_of(page)) == 3000


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
        assert page.count("<script") == page.count("</script") == 2 + len(LIBRARIES) and "<img" not in page
    assert "\x1b" not in page and "'<b>'" not in page
    assert data_of(page)["axes"][0]["name"] == "mode" and table_of(page)[0]["<b>"] == "@DATA@ @PAGE@"


def test_without_a_script_the_page_has_the_text_of_the_screen_and_a_table() -> None:
    result, text = replay(GPU_JOURNALS["gpu"]), without_script(report(GPU_JOURNALS["gpu"]))
    assert result.best is not None and text.startswith("gemm")
    assert "block_M=128, block_N=256" in text and f"latency {result.latency_ms:.4g} ms" in text
    assert "candidates 288: 288 measured" in text and text.count(" timing") > 280


def test_failures_have_their_output_and_an_example() -> None:
    found = parts_of(report(DATA))["failures"]["items"]
    for group, one in zip(failure_groups(replay(DATA).records), found, strict=True):
        assert one["title"] == f"{group.count:,} {what_failed(group.kind)}" and group.message in one["text"]
    assert found[0]["written"] and found[0]["example"].startswith("For example candidate ")
    example = parts_of(report(LAYOUTS))["failures"]["items"][0]["example"]
    assert example.startswith("For example candidate 40: block_rows=2")


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


def test_a_default_that_wins_is_said_and_not_compared_with_itself() -> None:
    stream = Stream(total=2, default=0).candidate(0, 1.0).candidate(1, 2.0).final({0: [1.0] * 3, 1: [2.0] * 3})
    card = parts_of(page_from(stream))["card"]
    assert card["figures"] == [["1 ms", "latency"]] and "No configuration beats the default." in card["notes"]


def test_a_default_outside_of_the_space_that_wins_is_on_every_part_of_the_page() -> None:
    stream = Stream(total=4, default=BASELINE).proposed(BASELINE, block=7).lowered(BASELINE).built(BASELINE)
    stream.measured(BASELINE, 1.0)
    for index in range(4):
        stream.candidate(index, 2.0 + index, block=index % 2, threads=index // 2)
    page = page_from(stream.final({BASELINE: [1.0] * 3, 0: [2.0] * 3}))
    assert any("Nothing in the space beats the default" in note for note in parts_of(page)["card"]["notes"])
    data = data_of(page)
    assert [row[0] for row in data["candidates"]] == [BASELINE, 0, 1, 2, 3] and data["winner"] == BASELINE
    assert [axis["labels"] for axis in data["axes"]] == [["0", "1"], ["0", "1"]]  # those of the space alone
    assert data["candidates"][0][3:] == [None, None]
    assert [row["candidate"] for row in table_of(page)] == ["baseline", 0, 1, 2, 3]
    assert [row["× winner"] for row in table_of(page)] == [1.0, 2.0, 3.0, 4.0, 5.0]


def test_the_plots_are_of_the_axes_that_matter_most() -> None:
    result, page = replay(LAYOUTS), report(LAYOUTS)
    mattered, data = axis_importance(result), data_of(page)
    assert mattered is not None and result.best is not None
    first, second = [axis["name"] for axis in data["axes"]][:2]
    assert [first, second] == [*mattered.shares][:2]
    assert parts_of(page)["heat"]["title"] == f"{first} and {second}"
    [best] = [row for row in data["candidates"] if row[0] == result.best_index]
    assert data["axes"][0]["labels"][best[3]] == str(result.best.config[first])
    shares = {row[0]: row[1]["text"].split()[0] for row in parts_of(page)["mattered"]["rows"]}
    assert {name: f"{100 * share:.1f}" for name, share in mattered.shares.items()}.items() <= shares.items()


def test_parallel_coordinates_begin_at_three_axes() -> None:
    def parts(**more: int) -> set[str]:
        stream = Stream(total=4)
        for i in range(4):
            stream.candidate(i, 1.0 + i, a=i % 2, b=i // 2, **dict.fromkeys(more, i))
        return set(parts_of(page_from(stream)))

    assert "parallel" in parts(c=1) and "parallel" not in parts() and "heat" in parts()
    few = parts_of(page_from(Stream(total=1).candidate(0, 1.0)))["mattered"]
    assert few["text"] == "Too few candidates were measured to tell."


def test_facts_layouts_and_rooflines_of_the_winner_stand_on_the_page() -> None:
    result = replay(LAYOUTS)
    [kernel] = [part for part in data_of(report(LAYOUTS))["parts"] if part.get("id") == "kernel"]
    assert result.best is not None and result.best.machine is not None and result.roofline is not None
    known = dict(kernel["rows"])
    assert known["registers"] == f"{result.best.machine.registers} a thread" and "fragment s" in known
    assert known["roofline"].startswith("3.246 TB/s")
    source = parts_of(report(LAYOUTS))["source"]
    assert source["command"] == f"atune explain {LAYOUTS} {result.best_index} --source"


def test_the_source_is_on_the_page_where_it_was_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Result, "kernel_source", "int a<b;\n" * 3)
    monkeypatch.setattr("atune.reporting.report.SOURCE", 9)
    source = parts_of(report(LAYOUTS))["source"]
    assert source["summary"] == "3 lines, as compiled" and source["written"] == ["int a<b;", "… 18 more characters"]


def test_the_final_is_on_the_device_s_line_of_time() -> None:
    rows = {row["name"]: row["spans"] for row in data_of(report(LAYOUTS))["timeline"]["rows"]}
    [(_, since, until, note)] = [span for span in rows["device 0"] if span[0] == "final"]
    assert note == "of 7 candidates" and since < until
    assert since == max(span[2] for spans in rows.values() for span in spans if span[0] != "final")


def test_the_report_has_the_devices_by_host(tmp_path: Path) -> None:
    devices, stream = ("b/0", "a/10", "a/9"), Stream(total=8)
    stream.events[0] = msgspec.structs.replace(stream.events[0], devices=devices)
    assert isinstance(stream.events[0], RunStarted)
    for device in devices:
        stream.add(DeviceReady, device=DeviceInfo(device, "H200"))
    for index, device in enumerate(devices):
        stream.proposed(index, block=index).lowered(index).built(index)
        stream.add(BenchmarkStarted, index=index, device=device)
        stream.add(CandidateMeasured, index=index, device=device, timing=timing(2.0 - index / 10), checked=True)
    page = page_from(stream)
    assert parts_of(page)["card"]["origin"][0].startswith("3 × H200, ")
    named = [row["name"] for row in data_of(page)["timeline"]["rows"]]
    assert named[-3:] == ["device a/9", "device a/10", "device b/0"]  # a host's devices next to each other
    assert measured_on([DeviceInfo("0", "H200"), DeviceInfo("1", "H200")]) == "2 × H200"


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
