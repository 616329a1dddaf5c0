"""The report's page of any journal: it loads nothing, and draws in a browser without an error."""

from __future__ import annotations

import html
import re
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import pytest
from browser import BROWSER
from event_streams import Stream, write
from reporting.test_look import DATA, GPU_JOURNALS

from atune.frontends.cli.main import main
from atune.journal.reader import read
from atune.journal.replay import replay
from atune.reporting.importance import axis_importance
from atune.reporting.report import LIBRARIES, report


class Links(HTMLParser):
    """Collects what a page would load."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found += [value or "" for name, value in attrs if name in ("src", "href")]


def hostile(tmp_path: Path) -> Path:
    """A journal whose every text tries to become a part of the page."""
    text = "</script><script>document.title='owned'</script><img src=x onerror=alert(1)><!--"
    stream = Stream(total=3, default=0).candidate(0, 1.0, mode=text).build_failed(1, text).candidate(2, 2.0, mode="b")
    return write(tmp_path / "hostile.jsonl", stream.final({0: [1.0, 1.0], 2: [2.0, 2.0]}).finished().events)


def test_the_page_loads_nothing_and_no_text_of_a_journal_gets_out_of_its_data(tmp_path: Path) -> None:
    for journal in (DATA, hostile(tmp_path)):
        page = report(journal)
        links = Links()
        links.feed(page)
        assert links.found == ["data:,"] and "default-src 'none'" in page
        assert page.count("<script") == page.count("</script") == 2 + len(LIBRARIES) and "<img" not in page


def without_script(page: str) -> str:
    """Return the text of a page that runs no script, between its tags."""
    body = re.sub(r"<(script|style).*?</\1>|<wbr>", "", page, flags=re.S)
    return " ".join(re.sub(r"<[^>]*>", " ", body).split())


def test_the_page_has_winner_curve_and_axes_without_a_script() -> None:
    result = replay(GPU_JOURNALS["gpu"])
    page = report(GPU_JOURNALS["gpu"])
    text = without_script(page)
    assert "block_M=128, block_N=256" in text and f"{result.latency_ms:.4g} ms latency" in text
    assert "288 candidates: 288 measured ; 0 failed, pruned, duplicate or untried." in text
    mattered, best = axis_importance(result), result.best
    assert mattered is not None and best is not None
    for name, share in mattered.shares.items():
        assert f"{name} {100 * share:.1f} % {best.config[name]}" in text
    [curve] = re.findall(r"<noscript><table>(.*?)</table>", page)
    assert curve.count("<tr>") - 1 == len(result.best_over_time) > 3
    last = result.best_over_time[-1]
    assert f"{last.seconds:.1f} {last.latency_ms:.4g} {last.tried} {last.index}" in without_script(curve)


def test_too_few_candidates_are_mentioned_on_the_page(tmp_path: Path) -> None:
    page = report(write(tmp_path / "j", Stream(total=1).candidate(0, 1.0).finished().events))
    assert "Too few candidates were measured to tell." in without_script(page)


def test_text_of_a_journal_is_no_place_of_the_page(tmp_path: Path) -> None:
    stream = Stream(total=1).candidate(0, 1.0, mode="@DATA@ @BEFORE@ <u>").finished()
    page = report(write(tmp_path / "j", stream.events))
    assert "mode='@DATA@ @BEFORE@ <u>'" in html.unescape(without_script(page)) and "<u>" not in page


def opened(page: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    """Return what Chromium prints of a page once its scripts have run."""
    always = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={page.parent / 'profile'}", "--dump-dom"]
    command = [str(BROWSER), *always, *flags, page.as_uri()]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


@pytest.mark.skipif(BROWSER is None, reason="no headless Chromium is installed")
@pytest.mark.parametrize("kind", ["stored", "hostile", "interrupted", "nothing measured", "gpu", "gpu, two parts"])
def test_the_page_draws_in_a_browser_without_an_error(kind: str, tmp_path: Path) -> None:
    journal = DATA
    if kind == "hostile":
        journal = hostile(tmp_path)
    elif kind in GPU_JOURNALS:
        journal = GPU_JOURNALS[kind]
    elif kind != "stored":
        journal = write(tmp_path / "j", read(DATA)[: 40 if kind == "interrupted" else 3])
    page = tmp_path / "page.html"
    assert main(["report", str(journal), "-o", str(page)]) == 0
    done = opened(page, "--enable-logging=stderr")
    assert 'data-drawn="yes"' in done.stdout and "CONSOLE" not in done.stderr, done.stderr
    wanted = {
        "stored": ("search", "heat", "rank", "timeline"),
        "hostile": ("search", "rank", "timeline"),
        **dict.fromkeys(GPU_JOURNALS, ("search", "heat", "rank", "parallel", "timeline")),
    }
    drawn = re.findall(r'<section id="(\w+)" data-plot="">(?:(?!</section>).)*<svg', done.stdout, flags=re.S)
    assert set(wanted.get(kind, ())) <= set(drawn) and len(set(drawn)) == len(drawn)
    assert all(f'id="{name}"' in done.stdout for name in ("winner", "environment"))
    title = re.findall("<title>(.*?)</title>", done.stdout)[0]
    assert title.startswith("gemm" if kind in GPU_JOURNALS else "toy" if kind == "hostile" else "fake"), title
    assert "<img" not in done.stdout
    if kind == "stored":
        assert done.stdout.count("<circle") > 10 and "Copy as Python" in done.stdout
