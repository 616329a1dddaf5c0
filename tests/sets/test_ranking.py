"""Sets whose problems differ in one size, ranked together on code in which it is symbolic; on the CPU target."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
import tilelang.language as T
from event_streams import Stream, write
from processes import environment, wait_until
from set_kernels import RANKED, ROWS_OF, rows
from test_tune_set import FAST, KERNELS, measured

import atune
from atune import Problems
from atune.engine.search.prior import best_ranks
from atune.errors import JournalError
from atune.frontends.api.ranking import groups_of, wider
from atune.frontends.api.tune_set import SetResult, read_set, resume_set
from atune.frontends.cli.main import main
from atune.journal.events import BuildFailed, CandidateMeasured, DeviceLost, Event, RunFinished
from atune.journal.reader import JournalReader
from atune.journal.set_folder import forget_added, listed, ranked_first, rankings_in
from atune.journal.state import State
from atune.model.candidate import Problem, config_key, over_sizes
from atune.model.device import Target
from atune.model.settings import Budget
from atune.stages.frontend.frontend import elaborate
from atune.workers.local.device_worker import LocalDeviceWorker
from atune.workers.local.machine import shared_processes

pytestmark = pytest.mark.timeout(170)
SIZES = Problems(m=[1, 5, 64], n=[16, 32])


@pytest.fixture(scope="module")
def ranked(tmp_path_factory: pytest.TempPathFactory) -> tuple[SetResult, list[Event]]:
    events: list[Event] = []
    folder = tmp_path_factory.mktemp("ranked") / "set"
    result = atune.run_set(f"{KERNELS}:RANKED", SIZES, journal=folder, symbolic=True, on_event=events.append, **FAST)
    return result, events


def test_each_configuration_is_compiled_once_and_measured_at_each_size(ranked: Any) -> None:
    result, _ = ranked
    found = rankings_in(result.folder)
    assert [header.arguments for _, header in found if header.arguments["n"] == 16] == [
        {"m": {"$dynamic": "m", "sizes": [1, 5, 64]}, "n": 16}
    ]
    assert len(found) == 2
    for path, header in found:
        state = State.of(JournalReader(path))
        assert [len(one.sizes_ms) for one in state.ranked()] == [3, 3, 3, 3] and state.final is None
        for one in state.ranked():
            assert one.timing.latency_ms == pytest.approx(statistics.geometric_mean(one.sizes_ms), rel=1e-4)
        assert over_sizes(header.arguments)[1] == {"m": 5, "n": header.arguments["n"]}


def test_what_is_wrong_at_a_size_fails_and_the_failure_names_it(ranked: Any) -> None:
    path, _ = rankings_in(ranked[0].folder)[0]
    state = State.of(JournalReader(path))
    [wrong] = [entry for entry in state.entries.values() if entry.config == {"block": 3}]
    assert wrong.outcome.kind in ("mismatch", "unwritten") and wrong.outcome.message.startswith("m=1, n=")


def test_each_problem_tries_the_first_of_its_own_order_and_the_default_with_numbers(ranked: Any) -> None:
    result, _ = ranked
    first = {}
    for path, header in rankings_in(result.folder):
        found = ranked_first(State.of(JournalReader(path)))
        first |= dict(zip(map(config_key, over_sizes(header.arguments)), found, strict=True))
    for row in result:
        tried = [record.config for record in row.result.records if record.latency_ms is not None]
        configs = first[row.problem.key]
        assert 2 <= len(configs) <= 3 and row.result.header.strategy == "advised"
        assert sorted(map(str, tried)) == sorted({str(one) for one in (*configs, {"block": 4})})
        assert (
            row.result.default_ms is not None
            and row.result.header.flops == row.problem.arguments["m"] * row.problem.arguments["n"]
        )


def test_the_summary_says_what_was_ranked_and_a_reader_says_the_same(ranked: Any) -> None:
    result, _ = ranked
    [line] = [line for line in str(result).splitlines() if line.startswith("ranked     m=1…64, n=16")]
    assert "3 problems: 4 configurations on symbolic code; each problem tries its first" in line
    assert str(read_set(result.folder)) == str(result)


@pytest.mark.parametrize("spoils", ["ends the process", "fails", "is edited"])
def test_where_a_handed_on_process_cannot_prepare_a_new_one_takes_its_place(spoils: str, tmp_path: Path) -> None:
    """The reference keeps state in its process, or its file is edited once the first two problems have ended."""
    file = tmp_path / "kept.py"
    again = {"ends the process": "os.abort()", "fails": "raise ValueError", "is edited": "pass"}[spoils]
    text = f"""
import os
import sys
sys.path.insert(0, {str(Path(KERNELS).parent)!r})
import atune
from set_kernels import scale
seen = set()

def doubled(A):
    seen.add(len(A))
    if len(seen) > 1:
        {again}
    return A * 2

W = atune.Workload(scale, atune.Space(block=[16, 64]), arguments={{"n": 256}}, reference=doubled, name="w")
"""
    file.write_text(text)
    ended, edited = 0, tmp_path / "edited.py"
    if spoils == "is edited":
        edited.write_text(text.replace("A * 2", "2 * A"))

    def edit(event: Event) -> None:
        nonlocal ended
        ended += isinstance(event, RunFinished)
        if ended == 2 and edited.exists():
            edited.replace(file)

    sizes = Problems(n=[256, 512, 1024, 2048])
    found = atune.run_set(f"{file}:W", sizes, journal=tmp_path / "s", on_event=edit, **FAST)
    assert found[3].won, str(found)
    assert len(found.winners) == 4 or spoils == "is edited"  # while the third problem's processes load it


def test_the_next_problem_takes_no_process_that_ended_while_nobody_used_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hand_on, ended = LocalDeviceWorker.hand_on, list[int]()

    async def killing(device: LocalDeviceWorker) -> None:
        pid = device._worker.pid if device._worker is not None else 0
        await hand_on(device)
        os.kill(pid, signal.SIGKILL)
        ended.append(pid)

    monkeypatch.setattr(LocalDeviceWorker, "hand_on", killing)
    events: list[Event] = []
    sizes = Problems(n=[300, 600, 1200, 2400])
    found = atune.run_set(f"{KERNELS}:SCALE", sizes, journal=tmp_path / "s", on_event=events.append, **FAST)
    assert len(found.winners) == 4 == len(set(ended)) and not any(isinstance(event, DeviceLost) for event in events)


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("NUMBERED", "each tuned by itself: "),
        ("ASKING", ""),
        ("BRANCHING", "ValueError: the kernel compares m % 2 with 0, and needs it as a number"),
    ],
    ids=["it does not lower so", "its constraint takes the size", "its Python asks for the size"],
)
def test_a_group_that_cannot_be_ranked_is_tuned_as_others(name: str, why: str, tmp_path: Path) -> None:
    found = atune.run_set(
        f"{KERNELS}:{name}", Problems(m=[8, 16, 64], n=16), journal=tmp_path / "s", symbolic=True, **FAST
    )
    assert len(found.winners) == 3 and all(row.result.measured == 3 for row in found)
    lines = [line for line in str(found).splitlines() if line.startswith("ranked")]
    assert [why in line for line in lines] == ([True] if why else [])


@pytest.mark.parametrize("m", [8, {"$dynamic": "m", "sizes": [8, 9]}], ids=["a number", "symbolic"])
def test_only_a_kernels_python_must_know_its_size(m: Any) -> None:
    """What is compared in the kernel's own code stays symbolic, and nothing stays changed in tilelang."""

    def inside(m: Any, n: int) -> Any:
        @T.prim_func
        def main(A: T.Tensor((m, n), "float32"), B: T.Tensor((m, n), "float32")):
            with T.Kernel(m) as bx:
                for i in T.serial(n):
                    if m == 8:
                        B[bx, i] = A[bx, i]
                    else:
                        B[bx, i] = 0.0

        return main

    assert elaborate(inside, {"m": m, "n": 4}, {}).params
    assert not bool(T.dynamic("m") == 8)


def test_arguments_of_the_workloads_own_are_part_of_a_ranking(tmp_path: Path) -> None:
    """The problems give only what differs; one that is a dictionary is no size, and a default of none's is no first."""
    problems = [{"m": m, "names": {"a": 1}} for m in (1, 5, 64)]
    given: dict[str, Any] = {"journal": tmp_path / "s", "symbolic": True, "cached": False, **FAST}
    found = atune.run_set(f"{KERNELS}:NAMED", problems, **given)
    [(path, header)] = rankings_in(found.folder)
    assert header.arguments["n"] == 16
    first = ranked_first(State.of(JournalReader(path)))
    assert [row.result.header.advice[-1].first for row in found] == first
    assert {config["block"] for each in first for config in each} <= {1, 2, 4}
    more = atune.run_set(f"{KERNELS}:NAMED", [*problems, {"m": 2, "names": {"a": 1}}], **given)
    assert len(more.winners) == 4 and len(rankings_in(found.folder)) == 1


@pytest.mark.parametrize("limit", [None, "1GiB"])
def test_a_limit_of_memory_is_shared_by_no_more_problems_because_they_are_ranked(
    limit: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    def shared(*, at_once: int) -> Any:
        asked.append(at_once)
        return shared_processes(at_once=at_once)

    monkeypatch.setattr("atune.frontends.api.tune_set.shared_processes", shared)
    monkeypatch.setattr("atune.frontends.api.tune_set.WORKERS_EACH", 10**6)
    settings = msgspec.structs.replace(FAST["benchmark"], memory_limit=limit)
    given: dict[str, Any] = {**FAST, "benchmark": settings, "symbolic": True, "journal": tmp_path / "s"}
    atune.run_set(f"{KERNELS}:RANKED", Problems(m=[1, 5, 64, 100], n=16), **given)
    assert asked == [4 if limit is None else 2]


def test_inputs_that_fail_at_one_size_cost_that_problem_alone_and_the_summary_says_so(tmp_path: Path) -> None:
    given: dict[str, Any] = {**FAST, "symbolic": True, "journal": tmp_path / "s"}
    found = atune.run_set(f"{KERNELS}:NO_FIVE", Problems(m=[1, 5, 64], n=16), **given)
    assert [row.won for row in found] == [True, False, True]
    [line] = [line for line in str(found).splitlines() if line.startswith("ranked")]
    assert "not ended: WorkloadError: " in line and line.endswith("no five rows")


@pytest.mark.parametrize("options", [{}, {"symbolic": False}, {"symbolic": True, "same_bits": "default"}])
def test_on_the_cpu_nothing_is_ranked_unless_asked_for(options: dict[str, Any], tmp_path: Path) -> None:
    """Nor where outputs must have the default's bits: other code may have other ones."""
    settings = msgspec.structs.replace(FAST["benchmark"], same_bits=options.pop("same_bits", None))
    given: dict[str, Any] = {**FAST, **options, "benchmark": settings, "budget": 1, "journal": tmp_path / "s"}
    found = atune.run_set(f"{KERNELS}:RANKED", Problems(m=[1, 5, 64], n=16), **given)
    assert len(found.winners) == 3 and not rankings_in(tmp_path / "s")


def test_a_ranking_of_another_space_is_not_believed(tmp_path: Path) -> None:
    """It had ended, and the problems had not begun."""
    given: dict[str, Any] = {**FAST, "symbolic": True, "journal": tmp_path / "s", "cached": False}
    problems = Problems(m=[1, 5, 64], n=16)
    atune.run_set(RANKED, problems, **given)
    for path in (tmp_path / "s").glob("0*.jsonl"):
        path.unlink()
    ended = {path: path.read_bytes() for path, _ in rankings_in(tmp_path / "s")}
    other = atune.Workload(rows, atune.Space(block=[5, 6, 7]), name="ranked", **ROWS_OF)
    with pytest.raises(JournalError, match="another space"):
        atune.run_set(other, problems, **given)
    assert len(atune.run_set(RANKED, problems, **given).winners) == 3
    assert {path: path.read_bytes() for path in ended} == ended


def test_a_set_that_was_ranked_and_has_ended_is_not_begun_again(tmp_path: Path) -> None:
    """Each problem tried fewer than its budget admits, and is finished all the same."""
    given: dict[str, Any] = {**FAST, "symbolic": True, "journal": tmp_path / "s", "cached": False}
    atune.run_set(f"{KERNELS}:RANKED", Problems(m=[1, 5, 64], n=16), **given)
    before = {path: path.read_bytes() for path in (tmp_path / "s").glob("*.jsonl")}
    assert len(before) == 4
    atune.run_set(f"{KERNELS}:RANKED", Problems(m=[1, 5, 64], n=16), **given)
    assert {path: path.read_bytes() for path in before} == before


@pytest.mark.parametrize("ends", ["while it ranks", "while a problem is tuned"])
def test_killed_and_resumed_nothing_is_measured_twice(ends: str, tmp_path: Path) -> None:
    folder = tmp_path / "set"
    program = (
        "import atune; atune.run_set("
        f"'{KERNELS}:RANKED', atune.Problems(m=[1, 5, 64, 100], n=16), journal={str(folder)!r}, symbolic=True,"
        "budget=4, target='c', benchmark=atune.BenchmarkSettings(n_repeat=3, n_warmup=1, n_final_rounds=3),"
        "progress=False)"
    )
    child = subprocess.Popen([sys.executable, "-c", program], env=environment(), stderr=subprocess.DEVNULL)
    begins = "ranking-" if ends == "while it ranks" else "0"
    wait_until(lambda: any(one.startswith(begins) for one in measured(folder)), 100, "a measurement")
    child.send_signal(signal.SIGKILL)
    child.wait()
    found = asyncio.run(resume_set(folder, f"{KERNELS}:RANKED", progress=False))
    assert len(found.winners) == 4 and set(measured(folder).values()) == {1}
    [(path, header)] = rankings_in(folder)
    assert header.settings["budget"]["candidates"] == 12 and len(ranked_first(State.of(JournalReader(path)))) == 4
    assert all(row.result.header.settings["budget"]["candidates"] == 4 for row in found)


def test_a_set_that_is_interrupted_while_it_ranks_is_continued(
    tmp_path: Path, capfd: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C in the ranking of a new set, whose problems have not begun. A ranking has a wider budget, and the cores of
    all problems."""
    folder = tmp_path / "set"
    monkeypatch.setattr("atune.frontends.api.tune_set.workers_that_fit", lambda *_: 6)

    def interrupt(event: Event) -> None:
        if isinstance(event, CandidateMeasured):
            os.kill(os.getpid(), signal.SIGINT)

    given: dict[str, Any] = {**FAST, "budget": "60%", "symbolic": True, "journal": folder}
    sizes = Problems(m=[1, 5, 64], n=16)
    with pytest.raises(KeyboardInterrupt, match="kept in"):
        atune.run_set(f"{KERNELS}:RANKED", sizes, on_event=interrupt, **given)
    main(["replay", str(folder)])
    shown = capfd.readouterr().out
    assert "not ended: cancelled" in shown and f"atune resume {folder}" in shown
    with pytest.raises(KeyboardInterrupt):  # while it ranks added problems
        atune.run_set(f"{KERNELS}:RANKED", Problems(m=[2, 3, 7], n=32), on_event=interrupt, **given)
    assert len(read_set(folder)) == 6
    assert main(["resume", str(folder), "--quiet"]) == 0
    found = read_set(folder)
    assert len(found.winners) == 6 and set(measured(folder).values()) == {1}
    for row in found:
        settings = row.result.header.settings
        assert settings["budget"]["percent"] == 60.0 and settings["compile"]["workers"] in (1, 2)
    assert main(["runs", "--json"]) == 0
    runs = json.loads(capfd.readouterr().out.splitlines()[-1])["runs"]
    [run] = [one for one in runs if one["journal"] == str(folder)]
    assert (run["ended"], run["problems"], run["state"]) == (6, 6, "finished")


@pytest.mark.parametrize("removed", [True, False], ids=["its rankings were removed", "it ranked nothing"])
def test_a_set_without_rankings_is_continued_without_them(
    removed: bool, ranked: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A problem that is left has the strategy and the budget of a set that ranks nothing, on a GPU, too."""
    folder, target = tmp_path / "set", Target("cuda", "sm_90")
    monkeypatch.setattr("atune.frontends.api.tune_set.discover", lambda *_: (target, []))
    if removed:
        shutil.copytree(ranked[0].folder, folder)
    else:
        atune.run_set(f"{KERNELS}:RANKED", SIZES, journal=folder, symbolic=False, **FAST)
    for path in (*folder.glob("ranking-*.jsonl"), *folder.glob("000[1-5].jsonl")):
        path.unlink()
    found = asyncio.run(resume_set(folder, f"{KERNELS}:RANKED", progress=False))
    assert not rankings_in(folder)
    for row in found[1:]:
        assert row.result.header.strategy == "exhaustive" and row.result.measured + row.result.failed == 5


@pytest.mark.parametrize("sizes", [[1, 2, 3], [], 5, "abc", {"a": 1}, [[1], None]], ids=repr)
def test_a_ranking_that_a_stranger_wrote_is_shown_as_far_as_it_goes(sizes: Any, tmp_path: Path) -> None:
    stream = Stream(total=3).ready().candidate(0, 1.0).candidate(1, 2.0).candidate(2, 3.0).finished()
    stream.events[0] = msgspec.structs.replace(stream.events[0], arguments={"m": {"$dynamic": "m", "sizes": sizes}})
    write(tmp_path / "ranking-1.jsonl", stream.events)
    (tmp_path / "set.json").write_text('[{"arguments":{"m":1}}]')
    assert "ranked     m=" in str(read_set(tmp_path))
    assert main(["replay", str(tmp_path / "ranking-1.jsonl")]) == 0


@pytest.mark.parametrize("where", [0, 5])
def test_a_damaged_ranking_hides_neither_its_set_nor_other_rankings(where: int, tmp_path: Path, capsys: Any) -> None:
    stream = Stream(total=3).ready().candidate(0, 1.0).candidate(1, 2.0).candidate(2, 3.0).finished()
    write(tmp_path / "0000.jsonl", stream.events)
    stream.events[0] = msgspec.structs.replace(stream.events[0], arguments={"m": {"$dynamic": "m", "sizes": [1]}})
    for name in ("ranking-1.jsonl", "ranking-2.jsonl"):
        write(tmp_path / name, stream.events)
    lines = (tmp_path / "ranking-1.jsonl").read_bytes().splitlines(keepends=True)
    (tmp_path / "ranking-1.jsonl").write_bytes(b"".join([*lines[:where], b"rubbish\n", *lines[where + 1 :]]))
    (tmp_path / "set.json").write_text('[{"arguments":{"m":1}}]')
    with pytest.warns(RuntimeWarning, match=rf"a ranking .* is left out: .*ranking-1\.jsonl, line {where + 1}: "):
        assert main(["replay", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "1 of 1 with a winner" in out and out.count("ranked     m=") == 1


@pytest.mark.parametrize("strategy", ["auto", "prior"])
def test_resumed_problems_have_the_strategy_that_was_given_and_not_their_rankings(
    strategy: str, tmp_path: Path
) -> None:
    """A ranking that tries the whole space is exhaustive, and ranks nothing here; each problem tries two of three."""

    def interrupt(event: Event) -> None:
        if isinstance(event, BuildFailed):
            os.kill(os.getpid(), signal.SIGINT)

    given: dict[str, Any] = {**FAST, "budget": 2, "symbolic": True, "strategy": strategy, "cached": False}
    with pytest.raises(KeyboardInterrupt):
        atune.run_set(
            f"{KERNELS}:NUMBERED", Problems(m=[8, 16, 64], n=16), journal=tmp_path / "s", on_event=interrupt, **given
        )
    [(_, header)] = rankings_in(tmp_path / "s")
    found = asyncio.run(resume_set(tmp_path / "s", f"{KERNELS}:NUMBERED", progress=False))
    alone = {"auto": "random", "prior": "prior"}[strategy]
    assert [row.result.header.strategy for row in found] == [alone] * 3
    assert header.strategy == {"auto": "exhaustive", "prior": "prior"}[strategy]


@pytest.mark.parametrize("sizes", [[1, 5, 64], [2, 3, 7]], ids=["theirs", "of others"])
def test_added_problems_stay_listed_once_a_ranking_of_theirs_has_begun(sizes: list[int], tmp_path: Path) -> None:
    """The ranking's header has an argument of the workload's own, too."""
    had, added = Problem({"m": 2}), [Problem({"m": m}) for m in (1, 5, 64)]
    (tmp_path / "set.json").write_bytes(msgspec.json.encode([had, *added]))
    stream = Stream()
    ranked = {"m": {"$dynamic": "m", "sizes": sizes}, "n": 16}
    write(tmp_path / "ranking-1.jsonl", [msgspec.structs.replace(stream.events[0], arguments=ranked)])
    forget_added(tmp_path, [had])
    assert [*listed(tmp_path).values()] == [had, *(added if sizes[0] == 1 else [])]


def test_problems_are_grouped_by_the_size_that_makes_the_fewest_groups(tmp_path: Path) -> None:
    def grouped(**sizes: Any) -> list[tuple[Any, int]]:
        problems = [Problem(dict(one.arguments)) for one in Problems(**sizes)]
        groups = groups_of(tmp_path, problems)
        return [({n: v for n, v in one.arguments.items() if not isinstance(v, dict)}, len(one.keys)) for one in groups]

    assert grouped(m=[1, 2, 4], n=[16, 32]) == [({"n": 16}, 3), ({"n": 32}, 3)]
    assert grouped(m=[1, 2], n=[16, 32, 64]) == [({"m": 1}, 3), ({"m": 2}, 3)]
    assert grouped(m=[1, 2], n=16) == []
    assert grouped(m=[1, 2, 4], dtype="float16") == [({"dtype": "float16"}, 3)]
    assert grouped(dtype=["a", "b", "c"], n=16) == [] and grouped(causal=[True, False], n=16) == []


def test_a_ranking_has_three_times_the_budget() -> None:
    assert wider(Budget(candidates=12)) == Budget(candidates=36)
    assert wider(Budget(percent=50.0)) == Budget(percent=100.0)
    assert wider(Budget()) == Budget() and wider(Budget(seconds=9.0)) == Budget(seconds=9.0)
    assert wider(Budget(auto=True)) == Budget(candidates=48)
    assert wider(Budget(auto=True, candidates=4, percent=1.0)) == Budget(candidates=12, percent=3.0)
    for total in (10, 100, 400):
        own, wide = Budget(auto=True).most(total), wider(Budget(auto=True)).most(total)
        assert own is not None and wide is not None and wide >= own


def test_the_first_of_each_sizes_order_come_first_in_turn() -> None:
    ranks = best_ranks([{0: 1.0, 1: 2.0, 2: 3.0}, {2: 5.0, 1: 6.0, 0: 7.0}])
    assert sorted(ranks, key=ranks.__getitem__) == [0, 2, 1]
