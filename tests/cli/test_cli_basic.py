"""The command line: options, exit statuses, output, and signals, with the engine scripted."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from event_streams import Stream
from msgspec.structs import replace
from processes import environment
from programs import python

from atune.errors import NoWinner, TargetError, WorkerError
from atune.frontends.cli import doctor
from atune.frontends.cli.main import main
from atune.journal.result import Result
from atune.journal.writer import Journal, write_journal
from atune.model.settings import BenchmarkSettings, CompileSettings
from atune.stages import gpu
from atune.workers.result_cache import ResultCache

GOOD = Stream(total=3, default=0).ready(3.0).candidate(0, 4.0).candidate(1, 1.0).candidate(2)
GOOD.final({1: [1.0, 1.0, 1.0], 0: [4.0, 4.0, 4.0]}, [3.0]).finished(2.5)
BAD = Stream(total=3).proposed(0).build_failed(0).proposed(1).build_failed(1).candidate(2).finished()


class Scripted:
    """Stands for `tune`: keeps its arguments, emits events, and returns or raises."""

    def __init__(self, stream: Stream, error: BaseException | None = None) -> None:
        self.stream, self.error = stream, error
        self.options: dict[str, Any] = {}
        self.workload: Any = None

    async def tune(self, workload: Any, **options: Any) -> Result:
        self.workload, self.options = workload, options
        with Journal.create(options["journal"]) as journal:
            for event in self.stream.events:
                journal.append(event)
                options["on_event"](event if event.seq == 0 else replace(event, time=time.time()))
        ResultCache().add(options["journal"])
        if self.error is not None:
            raise self.error
        result = Result.from_events(self.stream.events, options["journal"])
        if result.best is None:
            raise NoWinner("no candidate worked: 2 failed to compile: g++ said no", result)
        return result


@pytest.fixture
def workload(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "toy.py").write_text("raise SystemExit('the parent must not load this')\n")
    return f"{tmp_path}/toy.py:WORKLOAD"


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Scripted]:
    def install(stream: Stream = GOOD, error: BaseException | None = None) -> Scripted:
        scripted = Scripted(stream, error)
        monkeypatch.setattr("atune.frontends.cli.tune.tune", scripted.tune)
        return scripted

    return install


def test_a_winner_gives_0_and_json_is_the_last_line(engine: Any, workload: str, tmp_path: Path, capsys: Any) -> None:
    engine()
    journal = str(tmp_path / "j.jsonl")
    assert main(["tune", workload, "--json", "--journal", journal]) == 0
    printed = json.loads(capsys.readouterr().out.splitlines()[-1])
    steps = [(step["tried"], step["index"], step["latency_ms"]) for step in printed["best_over_time"]]
    assert steps == [(1, 0, 4.0), (2, 1, 1.0)]
    assert printed.pop("reason") == "exhausted"
    assert printed["stages"]["compile_s"] >= printed["stages"]["compile_wall_s"] > 0
    assert {**printed, "best_over_time": [], "stages": {}} == {
        "best_over_time": [], "axis_importance": None, "stages": {},
        "roofline": None,
        "best_config": {"block": 1}, "latency_ms": 1.0, "reference_ms": 3.0, "measured": 2, "failed": 1, "pruned": 0,
        "default_ms": 4.0, "default_ratio": 4.0, "no_default": "",
        "duplicates": 0, "remaining": 0, "total": 3, "wall_s": 2.5, "journal": journal,
        "reference_ratio": 3.0, "ties": [], "noise": [], "cache_hit": False, "strategy": "exhaustive",
        "same_bits": {"asked": False, "winner": None, "same": 0, "measured": 2, "classes": 0, "varying": 0, "seeds": 1},
        "memory_bytes": 0,
        "warnings": [],
        "failures": [{
            "kind": "mismatch", "count": 1, "message": "wrong", "where": None,
            "example": {"index": 2, "config": {"block": 2}},
        }],
    }  # fmt: skip
    assert main(["replay", journal, "--json"]) == 0
    again = json.loads(capsys.readouterr().out)
    assert {name: again[name] for name in printed} == printed


def test_without_json_people_are_told(engine: Any, workload: str, capsys: Any) -> None:
    scripted = engine()
    assert main(["tune", workload]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("winner     block=1\nlatency    1 ms, 3.00 times faster than the reference (3 ms)\n")
    assert "4.00 times faster than the default configuration (4 ms, 95 % interval 4.00–4.00)" in out
    assert "the slowest" not in out and "1 gave wrong outputs: wrong" in out
    journal = next(line for line in out.splitlines() if line.startswith("journal")).split()[1]
    assert Path(journal).is_file() and "/cache/atune/journals/toy-" in journal
    assert err == "" and scripted.options["progress"] is True


def test_quiet_is_quiet_and_verbose_shows_events(engine: Any, workload: str, capsys: Any) -> None:
    scripted = engine()
    assert main(["tune", workload, "--quiet"]) == 0
    assert capsys.readouterr().err == "" and scripted.options["progress"] is False
    assert main(["tune", workload, "--verbose"]) == 0 and scripted.options["progress"] is False
    lines = capsys.readouterr().err.splitlines()
    assert [json.loads(line)["event"] for line in lines][:2] == ["run_started", "device_ready"]


def test_every_option_reaches_the_engine(engine: Any, workload: str) -> None:
    scripted = engine()
    options = (
        "--target sm_90 --devices 1,0 --devices 2 --strategy random --seed 7 --budget 2m --workers 3"
        " --compile-timeout 9.5 --timeout 8 --rep 5 --skip-check --quiet --no-cicc --cached --on-miss error"
        " --layouts 2 --warm cache --group-size 4 --warmup 6 --memory-limit 1.5GiB --same-bits default"
        " --no-pipeline --no-cache-inputs"
    )
    assert main(["tune", workload, *options.split()]) == 0
    given = scripted.options
    assert scripted.workload.origin == workload
    assert {k: given[k] for k in ("target", "devices", "strategy", "seed", "pipeline")} == {
        "target": "sm_90", "devices": ("1", "0", "2"), "strategy": "random", "seed": 7, "pipeline": False,
    }  # fmt: skip
    assert given["budget"].seconds == 120.0
    assert given["compile"] == CompileSettings(workers=3, group_size=4, compile_timeout_s=9.5, cicc=False, layouts=2)
    assert given["benchmark"] == BenchmarkSettings(
        n_warmup=6,
        n_repeat=5,
        benchmark_timeout_s=8.0,
        check=False,
        memory_limit=1536 << 20,
        same_bits="default",
        cache_inputs=False,
    )
    assert given["warm"] == ["cache"] and given["cached"] is True and given["on_miss"] == "error"


def test_earlier_runs_are_named_shortly(engine: Any, workload: str) -> None:
    scripted = engine()
    assert main(["tune", workload, "--quiet"]) == 0
    first = scripted.options["journal"]
    assert main(["tune", workload, "--quiet", "--warm", "toy", "--warm", "1", "--warm", "cache"]) == 0
    assert scripted.options["warm"] == [first, first, "cache"] and scripted.options["journal"] != first
    second = scripted.options["journal"]
    scripted.options = {}
    main(["tune", workload, "--quiet", "--journal", "latest"])
    assert scripted.options["journal"] == second


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--rep 0", "--rep: must be a whole number >= 1, got '0'"),
        ("--workers null", "--workers: must be a whole number, got 'null'"),
        ("--l2 hot", "--l2: must be 'cold' or 'warm', got 'hot'"),
        ("--memory-limit 4X", "--memory-limit: must be a size, such as '4GiB' or '512MiB', got '4X'"),
        ("--timeout nan", "--timeout: must be a number > 0.0, got 'nan'"),
        ("--budget 0", "candidates must be a whole number >= 1"),
        ("--strategy guess", "strategy 'guess' is unknown"),
        ("--devices 0,0", "device 0 is given twice"),
        ("--devices 0,x", "devices: give 'all', 'cpu' or device numbers such as [0, 1], got '0,x'"),
        ("--journal=", "path is empty"),
        ("--journal new/", "journal: 'new/' is a folder: give a file in it"),
        ("--no-use-pipeline", "did you mean --no-pipeline?"),
        ("more.py", "unexpected argument 'more.py' (see atune tune --help)"),
        ("--quiet --verbose", "--quiet and --verbose exclude each other: leave one of them out"),
        ("--dry-run --cluster auto", "--cluster: --dry-run and --compile-only use only this machine"),
        ("--compile-only --dry-run", "--compile-only: --dry-run compiles nothing: leave one of them out"),
        ("--compile-only --journal j.jsonl", "--journal: --dry-run and --compile-only write no journal"),
    ],
)
def test_a_mistake_gives_2_and_one_line(engine: Any, workload: str, capsys: Any, options: str, message: str) -> None:
    scripted = engine()
    assert main(["tune", workload, *options.split()]) == 2
    out, err = capsys.readouterr()
    assert err.startswith("atune: error: ") and message in err and err.count("\n") == 1 and out == ""
    assert not scripted.options


def test_the_engine_s_usage_error_gives_2_and_a_traceback_only_for_debug(
    engine: Any, workload: str, capsys: Any
) -> None:
    engine(error=ExceptionGroup("in a task group", [TargetError("device 7 is not there")]))
    assert main(["tune", workload, "--quiet"]) == 2
    assert capsys.readouterr().err == "atune: error: device 7 is not there\n"
    assert main(["tune", workload, "--quiet", "--debug"]) == 2
    assert "Traceback" in capsys.readouterr().err


def test_no_winner_gives_1_with_reasons_and_still_the_object(engine: Any, workload: str, capsys: Any) -> None:
    engine(BAD)
    assert main(["tune", workload, "--quiet", "--json"]) == 1
    out, err = capsys.readouterr()
    assert "2 failed to compile: g++ said no" in err
    printed = json.loads(out.splitlines()[-1])
    assert printed["best_config"] is None and printed["failed"] == printed["total"] == 3
    assert main(["replay", printed["journal"]]) == 1
    assert "2 failed to compile: g++ said no" in capsys.readouterr().out


def test_broken_machinery_gives_1_with_the_tail_of_its_words(engine: Any, workload: str, capsys: Any) -> None:
    engine(error=WorkerError("the server did not start", "\n".join(f"line {i}" for i in range(100))))
    assert main(["tune", workload, "--quiet"]) == 1
    err = capsys.readouterr().err
    assert "the server did not start" in err and "line 99" in err and "line 50" not in err
    engine(error=ZeroDivisionError("oh"))
    assert main(["tune", workload, "--quiet"]) == 1
    err = capsys.readouterr().err
    assert "ZeroDivisionError: oh" in err and "Traceback" not in err


def test_handlers_are_put_back(engine: Any, workload: str) -> None:
    before = [signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM)]
    engine()
    assert main(["tune", workload, "--quiet"]) == 0
    assert [signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM)] == before


@pytest.mark.newest
def test_doctor_runs_a_kernel_of_a_script_for_each_target(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: Any
) -> None:
    """Without a GPU it compiles one for CUDA, if nvcc is there. Nothing of that is kept."""
    monkeypatch.setenv("ATUNE_CACHE_DIR", str(tmp_path))
    status = main(["doctor", "--json"])
    printed = json.loads(capsys.readouterr().out)
    found = {one["name"]: one["found"] for one in printed["checks"]}
    assert status == 0 and printed["ok"] and found["target c"] == "can be tuned here: a kernel compiled and ran"
    if not any(name.startswith("GPU") for name in found) and shutil.which("nvcc"):
        assert found["target cuda"] == "cannot be tuned here; a kernel compiles"
    assert list(tmp_path.iterdir()) == []


def test_doctor_says_what_fails(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    """As it would say of an installation that computes what is wrong."""
    monkeypatch.setattr(doctor, "SCRIPT", doctor.SCRIPT.replace("A[bx * block + i] * 2.0", "A[bx * block + i] * 3.0"))
    target, other = doctor._target, doctor.Check("target cuda", False, "not tried")

    def tried(kind: str, as_: str) -> doctor.Check:
        return target(kind, as_) if kind == "c" else other

    before = list[str]()
    monkeypatch.setattr(doctor, "_target", lambda *asked: before.append(capsys.readouterr().out) or tried(*asked))
    assert main(["doctor"]) == 1
    out = capsys.readouterr().out
    assert before[0].startswith("ok       Python") and "cloudpickle" in before[0]  # shown while a target is tried
    out = "".join([*before, out])
    assert "missing  target c      a small kernel fails" in out
    assert "1 gave wrong outputs: output 0: 4096 of 4096" in out


def test_doctor_names_what_is_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: Any) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    for name in ("CUDA_HOME", "CUDA_PATH"):
        monkeypatch.delenv(name, raising=False)
    assert "g++ is missing, which target c needs: install g++" in doctor._target("c", "c").advice
    monkeypatch.setattr(doctor, "REQUIRES", {**doctor.REQUIRES, "no-such-package": ">=1,<2"})
    assert main(["doctor"]) == 1
    out = capsys.readouterr().out
    assert "pip install 'no-such-package>=1,<2'" in out and out.count("this environment lacks no-such-package") == 2


@pytest.mark.parametrize(("visible", "where"), [(None, ""), ("", " among CUDA_VISIBLE_DEVICES")])
def test_a_gpu_that_nothing_finds_is_told_with_where_it_was_looked_for(
    visible: str | None, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    monkeypatch.setattr(doctor, "SCRIPT", "")
    assert doctor._target("cuda", doctor.ARCH).advice == f"it lacks a GPU: NVML finds none{where}"
    with pytest.raises(TargetError, match=rf"\(NVML finds none{where}\): use target c for the CPU, or compile without"):
        gpu.find_devices("cuda", ("all",))


SLOW_ENGINE = """
import sys, anyio, anyio.to_thread
from event_streams import Stream
from atune.journal.writer import Journal
async def tune(workload, *, journal, on_event, **options):
    with Journal.create(journal) as file:
        for event in Stream(total=9).candidate(0, 1.0).events:
            file.append(event)
            on_event(event)
        print("running", flush=True)
        try:
            await anyio.sleep(60)
        finally:
            with anyio.CancelScope(shield=True):
                print("cleaning", flush=True)
                await anyio.to_thread.run_sync(sys.stdin.readline)
                print("clean", flush=True)
import atune.frontends.cli.tune
atune.frontends.cli.tune.tune = tune
from atune.frontends.cli.main import main
sys.exit(main())
"""


def begun(*command: str) -> subprocess.Popen[str]:
    pipes: Any = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    return subprocess.Popen(command, text=True, env=environment(), **pipes)


@pytest.mark.usefixtures("with_a_terminal")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_gives_130_after_cleaning_up_and_a_second_one_disturbs_nothing(
    number: signal.Signals, workload: str, tmp_path: Path
) -> None:
    journal = str(tmp_path / "j.jsonl")
    command = [sys.executable, "-c", SLOW_ENGINE, "tune", workload, "--json", "--quiet", "--journal", journal]
    with begun(*command) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "running\n"
        started = time.monotonic()
        process.send_signal(number)
        assert process.stdout.readline() == "cleaning\n"
        process.send_signal(signal.SIGINT)
        process.send_signal(number)
        out, err = process.communicate("go on\n", timeout=10)
    assert process.returncode == 130 and time.monotonic() - started < 2
    assert out.startswith("clean\n")
    data = json.loads(out.splitlines()[-1])
    assert (data["measured"], data["remaining"], data["best_config"], data["journal"]) == (
        1,
        8,
        {"block": 0},
        journal,
    )
    assert err == f"atune: interrupted; 1 measurement kept in {journal}; continue with atune resume {journal}\n"


def test_an_interrupt_in_a_destructor_is_raised_after_it() -> None:
    code = """
import signal, sys, time, types
class Interrupted:
    def __del__(self):
        signal.raise_signal(signal.SIGINT)
        print("not reached")
module = types.ModuleType("atune.frontends.cli.doctor")
def doctor_command(*_):
    Interrupted()
    print("after", flush=True)
    time.sleep(60)
module.doctor_command = doctor_command
sys.modules["atune.frontends.cli.doctor"] = module
from atune.__main__ import main
sys.exit(main())
"""
    done = python("-c", code, "doctor")
    assert (done.returncode, done.stdout, done.stderr) == (130, "after\n", "atune: interrupted\n")


def test_under_nohup_a_closed_terminal_interrupts_nothing(workload: str, tmp_path: Path) -> None:
    journal = str(tmp_path / "j.jsonl")
    command = ["nohup", sys.executable, "-c", SLOW_ENGINE, "tune", workload, "--quiet", "--journal", journal]
    with begun(*command) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "running\n"
        process.send_signal(signal.SIGHUP)
        time.sleep(0.3)
        assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        assert process.stdout.readline() == "cleaning\n"
        process.communicate("go on\n", timeout=10)
    assert process.returncode == 130


def test_an_interrupt_that_python_wraps_while_it_makes_a_class_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrapped(**_: object) -> int:
        raise RuntimeError("Error calling __set_name__") from KeyboardInterrupt()

    monkeypatch.setattr("atune.frontends.cli.main.make_parser", wrapped)
    assert main(["tune"]) == 130


def test_a_signal_at_any_time_from_the_start_gives_130_without_a_traceback(workload: str, tmp_path: Path) -> None:
    """Sent after 0, 10, 20 … ms from the moment that the program looks for the command line's module."""
    code = """
import sys
class Announce:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name == "atune.frontends.cli.main":
            print("loading", flush=True)

sys.stdout.reconfigure(line_buffering=True)
sys.meta_path.insert(0, Announce)
import runpy
runpy.run_module("atune", run_name="__main__", alter_sys=True)
"""
    for step in range(6):
        journal = str(tmp_path / f"{step}.jsonl")
        command = [sys.executable, "-c", code, "tune", workload, "--quiet", "--journal", journal]
        with begun(*command) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "loading\n"
            time.sleep(step * 0.01)
            process.send_signal(signal.SIGINT)
            _, err = process.communicate(timeout=10)
        assert process.returncode == 130, (step, err)
        assert "Traceback" not in err and "interrupted" in err


@pytest.mark.parametrize(("age_s", "told"), [(60, False), (-60, True)])
def test_a_finished_run_says_that_its_file_was_written_since(
    tmp_path: Path, capsys: Any, age_s: int, told: bool
) -> None:
    file, journal = tmp_path / "gone on.py", tmp_path / "j.jsonl"
    file.write_text("")
    header, *rest = Stream(total=1).candidate(0, 1.0).finished().events
    write_journal(str(journal), [replace(header, origin=f"{file}:W"), *rest])
    written = header.time - age_s  # also during the run, whose workers had loaded it before
    os.utime(file, (written, written))
    assert main(["resume", str(journal)]) == 0
    err = capsys.readouterr().err
    assert f"the run of {journal} is finished" in err
    assert (f"{file} was edited after the run: atune tune '{file}' tunes the new version" in err) == told
