"""Journals as a stranger may write them, checksums right: each command gives a value or one error."""

from __future__ import annotations

import io
import json
import os
import time
import zlib
from pathlib import Path
from random import Random
from typing import Any

import pytest
from event_streams import Stream, write
from msgspec.structs import replace
from strangers import mutated

from atune.errors import AtuneError, JournalError
from atune.frontends.cli.main import main
from atune.frontends.problems import Problems
from atune.frontends.resume import completed_by
from atune.journal import reader
from atune.journal.events import (
    BestChanged,
    DeviceExcluded,
    DeviceLost,
    DeviceReady,
    FinalStarted,
    SpaceSurveyed,
    Warned,
)
from atune.journal.reader import JournalReader, replay
from atune.journal.state import State, finished, recorded_budget
from atune.model.artifact import (
    Access,
    Artifact,
    BlockWork,
    Gemm,
    KernelParam,
    MachineFacts,
    Roles,
    StaticFacts,
)
from atune.model.candidate import BASELINE, MOST_SHOWN, Advice
from atune.model.device import DeviceInfo, DeviceLimits, Peaks, Target
from atune.model.layouts import FragmentFacts, Layouts, LoopFacts
from atune.reporting.export import table
from atune.reporting.progress import Progress
from atune.reporting.report import MOST_PAGE_BYTES, report
from atune.reporting.sets import cover, dispatch_rule, regret_matrix
from atune.reporting.summary import summary_text
from atune.workers.result_cache import known_of, stored_run


def whole(total: int = 5) -> Stream:
    """Return a run with every kind of event and all facts."""
    work = BlockWork((Gemm(64, 64, 32, 4.0, "bfloat16"),), (Access(4096.0, "x", 2.0, 16),), (Access(512.0),), 1.0, 2.0)
    layouts = Layouts((FragmentFacts("C", "float32", (64, 64), 32, 2),), (LoopFacts((64, 4), 4, 2, 1, stores=("B",)),))
    facts = StaticFacts(1024, 128, (4, 4), 32, 900, 0, work, layouts)
    device = DeviceInfo(
        "0", "H100", "u", "sm_90a", 1 << 36, DeviceLimits(1 << 17, 1024), 132, 1.9e9, 3e12, Peaks(1e15, 3e12)
    )
    stream = Stream(
        total, 0, compile={"flags": None, "workers": 2}, benchmark={"n_repeat": 20}, seed=0, budget={"candidates": 40}
    )
    stream.events[0] = replace(
        stream.events[0],
        target=Target("cuda", "sm_90a"),
        baseline={"block": 9, "tile": [1, 2]},
        code="c",
        problem={"N": 64},
        kernel="k",
        flops=1e9,
        bytes=1e6,
        advice=(Advice("cache x", ({"block": 1},)),),
        models=("H100",),
        points=10**30,
    )
    e = stream.add
    e(SpaceSurveyed, indices=(0, 1, 2), prior=(1.0, None, 2.0), facts={"can_run": (1.0, 0.0, None)})
    stream.ready(3.0).add(DeviceReady, device=device)
    for index in (BASELINE, 0, 1, 2):
        stream.proposed(index, block=index + 2, tile=(1, (2, 3)), mode="fast").lowered(index)
        stream.events[-1] = replace(stream.events[-1], facts=facts, printed="a\nb")
        stream.built(index)
        stream.events[-1] = replace(stream.events[-1], machine=(MachineFacts(64, 8, 4096, 0),), compiler="cicc")
    stream.measured(BASELINE, 4.0, 4.1).measured(0, 2.0, 2.1, 2.2).measured(1, 1.0, 1.1, 0.9)
    stream.failed(2, "wrong 3 of 4").proposed(3).lowered(3, "c1").aliased(3, 1).proposed(4).pruned(4)
    e(BestChanged, index=1, latency_ms=1.0).add(DeviceLost, device="0", reason="gone").add(
        DeviceExcluded, device="9", reason="slow"
    )
    e(FinalStarted, device="cpu", indices=(1, 0)).add(Warned, message="odd")
    stream.final({1: [1.0, 1.1], 0: [2.0, 2.2], BASELINE: [4.0, 4.0]}, [3.0, 3.1], ties=(0,))
    params = (KernelParam("float32", ("n",), None), KernelParam("float32", (64,), (1,)))
    kernel = Artifact(1, "/nowhere/x.so", "k", params, "cuda", calls=(0, "n"))
    return stream.interrupted().resumed().finished(kernel=kernel, roles=Roles((1,), (1,), (0,), ()))


def line_of(event: Any) -> bytes:
    body = json.dumps(event, separators=(",", ":")).encode()
    return b'{"crc":"%08x","event":%b}\n' % (zlib.crc32(body), body)


COMMANDS = (
    "replay J --table", "replay J --json", "show J", "show J 2", "show J --json", "export J --to csv",
    "export J --to json", "report J -o R", "compare J G", "merge J G", "merge G J --table",
)  # fmt: skip


def read_all(folder: Path, journal: Path, good: Path, capsys: Any, random: Random) -> bool:
    """Have a journal be read in every way. Tells whether it was refused; an error of another kind is raised."""
    words = {"J": str(journal), "G": str(good), "R": str(folder / "page.html")}
    status = main([words.get(word, word) for word in random.choice(COMMANDS).split()])
    err = capsys.readouterr().err
    assert "a bug in atune" not in err and "Traceback" not in err, err
    try:
        result, state = replay(journal), State.of(JournalReader(journal))
        completed_by(result.header, {"accept": ["settings"]})
        finished(state, recorded_budget(result.header))
        stored_run(str(journal), whole=True)
        known_of(state)
        with Progress(stream=None) as progress:
            for event in JournalReader(journal):
                progress.on_event(event)
        if result.best is not None:
            matrix = regret_matrix([result])
            cover(matrix)
            dispatch_rule(matrix)
    except AtuneError as error:
        return isinstance(error, JournalError) and status == 2
    return False


@pytest.mark.parametrize("seed", range(2))
def test_a_strangers_journal_is_a_result_or_one_error(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], fuzz: int = 120
) -> None:
    monkeypatch.setenv("ATUNE_CACHE_DIR", str(tmp_path / "cache"))
    good = write(tmp_path / "good.jsonl", whole().events)
    events = [json.loads(line)["event"] for line in good.read_bytes().splitlines()]
    random, refused, journal = Random(seed), 0, tmp_path / "j.jsonl"
    for _ in range(fuzz):
        changed = list(events)
        for _ in range(random.choice((1, 1, 2, 5))):
            at = random.randrange(len(changed))
            changed[at] = mutated(changed[at], random)
        journal.write_bytes(b"".join(map(line_of, changed)))
        refused += read_all(tmp_path, journal, good, capsys, random)
    assert fuzz / 10 < refused < fuzz


def of_texts(n: int) -> list[Any]:
    """Return events with failures that say a megabyte each."""
    return [{**one, "index": 10 + i} for i in range(n) for one in (
        {"event": "candidate_proposed", "key": str(i), "config": {"block": i, "text": "v" * 2**20}},
        {"event": "build_failed", "kind": "compile", "message": f"a{i} b " * 2**17, "detail": "line\n" * 2**17},
    )]  # fmt: skip


def of_axes(n: int) -> list[Any]:
    """Return candidates of a hundred axes, whose values are long."""
    config = {f"axis {k}": "v" * 200 for k in range(100)}
    proposed = {"event": "candidate_proposed", "config": config}
    failed = {"event": "build_failed", "kind": "compile"}
    return [{**one, "index": 10 + i, **more} for i in range(n) for one, more in (
        (proposed, {"key": str(i), "config": {**config, "block": i}}), (failed, {"message": f"{'x' * i} {i}"}),
    )]  # fmt: skip


@pytest.mark.parametrize(("more", "n"), [(of_texts, 10), (of_axes, 400)])
def test_long_texts_are_cut_where_they_are_shown_and_the_page_stays_small(more: Any, n: int, tmp_path: Path) -> None:
    good = write(tmp_path / "good.jsonl", whole().events)
    *events, end = [json.loads(line)["event"] for line in good.read_bytes().splitlines()]
    events = [{"time": 1.7e9, "mono": 1.0, **one, "seq": n} for n, one in enumerate([*events, *more(n), end])]
    (journal := tmp_path / "j.jsonl").write_bytes(b"".join(map(line_of, events)))
    began = time.process_time()
    assert len(report(journal).encode()) < MOST_PAGE_BYTES
    text = summary_text(result := replay(journal))
    assert max(map(len, text.splitlines())) < 2 * MOST_SHOWN and len(table(result)) < 4 * MOST_SHOWN * (n + 10)
    assert time.process_time() - began < 30


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (b"[" + b"[]," * 120_000 + b"[]]", "lists and objects"),
        (b"9" * 400, "integer of 300 digits"),
        (b"[" * reader.MAX_DEPTH + b"]" * reader.MAX_DEPTH, "nested deeper"),
        (b"[" * 900 + b"]" * 900, "nested deeper"),
        (b"1e999", "out of range"),
    ],
)
def test_what_unpacks_to_too_much_is_refused_by_its_line(value: bytes, why: str, tmp_path: Path) -> None:
    good = write(tmp_path / "good.jsonl", whole().events)
    lines = good.read_bytes().splitlines(keepends=True)
    event = b'{"event":"candidate_proposed","seq":%d,"time":1,"mono":1,"index":9,"key":"k","config":{"a":%b}}'
    body = event % (len(lines), value)
    good.write_bytes(b"".join(lines) + b'{"crc":"%08x","event":%b}\n' % (zlib.crc32(body), body) + b"\n")
    with pytest.raises(JournalError, match=rf"line {len(lines) + 1}: .*{why}"):
        replay(good)


@pytest.mark.parametrize("command", ["replay", "report", "export --to csv", "show", "resume", "watch"])
def test_a_journal_of_too_many_values_is_refused_but_in_the_cache_folder(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each line is one that may stand there."""
    journal = write(tmp_path / "j.jsonl", whole().events)
    monkeypatch.setattr(reader, "MAX_ALL_VALUES", journal.read_bytes().count(b",") - 1)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ATUNE_CACHE_DIR", str(tmp_path / "elsewhere"))
    assert main([*command.split(), str(journal)]) == 2
    assert f"values, which would take more than 1 GB of memory: if you trust it, move it into {tmp_path}" in " ".join(
        capsys.readouterr().err.split()
    )
    monkeypatch.setenv("ATUNE_CACHE_DIR", str(tmp_path))
    main([*command.split(), str(journal)])
    assert "1 GB" not in capsys.readouterr().err


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to("/dev/zero")])
@pytest.mark.parametrize(
    "command",
    [
        "replay F", "resume F", "report F", "export F --to csv", "watch F", "compare F F", "bundle F -o B",
        "explain F", "compare D D", "replay D", "resume D", "report D", "tune W.py --problems F.json --target c",
        "tune F.py", "runs",
    ],
)  # fmt: skip
def test_inputs_that_are_no_regular_files_are_refused(
    command: str, make: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """D is a set's folder whose journal and lock are such files."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ATUNE_CACHE_DIR", str(tmp_path / "cache"))
    (tmp_path / "D").mkdir()
    (tmp_path / "D" / "set.json").write_text('[{"arguments":{"n":1}}]')
    for name in ("F", "F.json", "F.py", "D/0000.jsonl", "D/set.lock"):
        make(tmp_path / name)
    (tmp_path / "W.py").write_text("")
    status = main(command.replace("F", "./F").replace(" D", " ./D").split())
    out, err = capsys.readouterr()
    assert "a bug in atune" not in err
    assert status in (1, 2) or command in ("replay D", "report D", "runs"), out + err


def test_standard_input_may_be_a_pipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b'[{"M": 1}, {"M": 2}]')))
    assert [one.arguments for one in Problems("/dev/stdin")] == [{"M": 1}, {"M": 2}]


@pytest.mark.parametrize("text", ['[{"arguments":{"n":%s}}]' % ("[" * 900 + "]" * 900), "\ud800", '[{"arguments":0}]'])
def test_a_strangers_set_is_read_or_refused(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "set.json").write_bytes(text.encode(errors="surrogatepass"))
    assert main(["replay", str(tmp_path)]) == 2
    assert "is not the folder of a set" in capsys.readouterr().err
