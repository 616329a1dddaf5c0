"""Published and other attacks on judges of kernels, as candidates of `atune measure`, and what becomes of them."""

from __future__ import annotations

import fcntl
import os
import re
import socket
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest
from attack_programs import DAEMON, JUDGED, ON_A_GPU, PYTHON, REACHED, SANDBOX, copying, does
from judged_programs import program

import atune
from atune.frontends.measure import MeasureResult

HERE = Path(__file__).parent
TASK = f"{HERE / 'tasks.py'}:DOUBLE"
ATTACKS = JUDGED | PYTHON | SANDBOX
MARK, HANG = "atune-left-behind", "atune-left-hanging"
FEW_ROUNDS = atune.BenchmarkSettings(n_repeat=5, n_final_rounds=5)
Judged = dict[str, MeasureResult]


def processes(mark: str) -> list[str]:
    """Return the command lines of processes that contain `mark`."""
    lines = list[str]()
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            lines.append(path.read_text(errors="replace"))
        except OSError:
            continue  # it has ended
    return [line for line in lines if mark in line]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The words in the programs of attacks, and their values: paths, a process, and a port and a socket that accept."""
    folder = tmp_path_factory.mktemp("attacked")
    with (
        pytest.MonkeyPatch.context() as patch,
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.socket(socket.AF_UNIX) as named,
    ):
        named.bind(path := str(folder / "socket"))
        named.listen()
        patch.setenv("ATUNE_TEST_SECRET", "secret")
        port, pid = str(server.getsockname()[1]), str(os.getpid())
        left = str(folder / "left")
        yield {"HERE": str(HERE), "LEFT": left, "PORT": port, "SOCKET": path, "MARK": MARK, "HOST": pid}


@pytest.fixture(scope="module")
def judged(place: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Judged:
    """Judge all attacks, once for all of pytest's processes."""
    folder = tmp_path_factory.getbasetemp()
    folder = folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder
    with open(folder / "attacks.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (file := folder / "attacks.json").exists():
            texts = [filled(attack.text, place) for attack in ATTACKS.values()]
            settings = {"compile": atune.CompileSettings(compile_timeout_s=30), "benchmark": FEW_ROUNDS}
            results = anyio.run(partial(atune.measure_many, texts, TASK, target="c", **settings))
            assert not Path(place["LEFT"]).exists() or not isolated(results[0])
            file.write_bytes(msgspec.json.encode(results))
    return dict(zip(ATTACKS, msgspec.json.decode(file.read_bytes(), type=list[MeasureResult]), strict=True))


def filled(text: str, place: dict[str, str]) -> str:
    for word, value in place.items():
        text = text.replace(word, value)
    return text


def isolated(result: MeasureResult) -> bool:
    return result.problems[0].python == "isolated"


@pytest.mark.parametrize("name", ATTACKS)
def test_what_becomes_of_an_attack(judged: Judged, name: str) -> None:
    """An attack that passes has gained nothing: its kernel is hardly faster than the baseline."""
    attack, result = ATTACKS[name], judged[name]
    if name in SANDBOX and not isolated(result):
        pytest.skip(result.problems[0].python)
    assert (result.status, attack.why in result.reason) == (attack.status, True), result
    assert REACHED not in result.reason
    if result.status == "passed":
        assert result.speedup is not None
        assert result.speedup[0] < 3


def test_no_process_of_a_candidate_is_left(judged: Judged) -> None:
    assert judged["daemon"].status == "passed"
    assert not processes(MARK)


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_candidate_that_hangs_is_killed_with_its_daemons(anyio_backend: str) -> None:
    text = does(f"{DAEMON.replace('MARK', HANG)}\nos.setsid()\ntime.sleep(600)")
    result = await atune.measure(text, TASK, target="c", compile=atune.CompileSettings(compile_timeout_s=4))
    assert result.status == "timeout"
    assert not processes(HANG)


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_inputs_that_never_change_can_be_known_and_the_result_says_so(anyio_backend: str) -> None:
    result = await atune.measure(program("B[i] = 2.0"), f"{HERE / 'attacked.py'}:SAME", target="c")
    assert result.status == "passed"
    assert not result.problems[0].fresh_inputs


def test_the_table_of_the_guide_has_each_attack() -> None:
    page = (HERE.parents[1] / "docs" / "how" / "measure.md").read_text()
    cells = re.findall(r"^\| (`.*?) \|", page.split("\n## Attacks\n")[1], re.MULTILINE)
    names = re.findall(r"`([\w-]+)`", " ".join(cells))
    assert sorted(names) == sorted([*ATTACKS, *ON_A_GPU, "inputs", "hang"])


LARGE = 1 << 22
GPU: Any = {"compile": atune.CompileSettings(compile_timeout_s=60)}


@pytest.fixture(scope="module")
def judged_on_a_gpu(place: dict[str, str]) -> Judged:
    """Judge the attacks on a GPU, all in a run, with honest candidates around them."""
    texts = {name: filled(attack.text, place) for name, attack in (JUDGED | ON_A_GPU).items() if name != "roofline"}
    texts = {"honest": program(), **texts, "last": copying()}
    settings = GPU | {"benchmark": atune.BenchmarkSettings(benchmark_timeout_s=10)}
    results = anyio.run(partial(atune.measure_many, texts.values(), TASK, **settings))
    return dict(zip(texts, results, strict=True))


@pytest.mark.gpu
@pytest.mark.parametrize("name", [name for name in JUDGED | ON_A_GPU if name != "roofline"])
def test_what_becomes_of_an_attack_on_a_gpu(judged_on_a_gpu: Judged, name: str) -> None:
    """Reasons are not compared, because the programs' threads all do the same, some in each other's way."""
    attack, result = (JUDGED | ON_A_GPU)[name], judged_on_a_gpu[name]
    assert result.status == attack.status, result
    assert result.problems[0].native == "only on the device"


@pytest.mark.gpu
def test_attacks_cost_honest_candidates_nothing_on_a_gpu(judged_on_a_gpu: Judged) -> None:
    for name in ("honest", "last"):
        assert judged_on_a_gpu[name].status == "passed", judged_on_a_gpu[name]
        assert judged_on_a_gpu[name].problems[0].fresh_inputs


@pytest.mark.gpu
@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_window_of_l2_gains_nothing(anyio_backend: str) -> None:
    """Calls of a kernel with such a window are timed alone, and the timer may need several calls for a sample."""
    texts = [copying(), ON_A_GPU["persisting"].text, ON_A_GPU["window"].text]
    plain, *windows = await atune.measure_many(texts, TASK, problems=[{"n": LARGE}], **GPU)
    assert plain.latency_ms is not None, plain
    for result in windows:
        assert result.latency_ms is not None, result
        assert result.latency_ms[1] > plain.latency_ms[1] * 0.9


@pytest.mark.gpu
@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_latency_below_the_roofline_is_refused(anyio_backend: str) -> None:
    attack = ON_A_GPU["roofline"]
    result = await atune.measure(attack.text, f"{HERE / 'attacked.py'}:IMPOSSIBLE", **GPU)
    assert (result.status, attack.why in result.reason) == (attack.status, True), result
