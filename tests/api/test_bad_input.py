"""Callers' mistakes: each is one `UsageError` that names the thing, and starts nothing that stays."""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from atune.errors import JournalError, TargetError, UsageError, WorkloadError
from atune.frontends.api.tuner import tune
from atune.model.settings import BenchmarkSettings, Budget, CompileSettings
from atune.testing import FakeMachine
from atune.workers.local.machine import LocalMachine
from atune.workload.pickling import parse_file_ref
from atune.workload.workload import Workload

pytestmark = pytest.mark.anyio
KERNELS = Path(__file__).parents[1] / "contract_kernels.py"
SCALED = f"{KERNELS}:SCALED"


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
async def host(anyio_backend: str) -> AsyncGenerator[LocalMachine, None]:
    host = LocalMachine(parse_file_ref(SCALED))
    async with host.open():
        yield host


def kernel(N: int, block: int = 1) -> None:
    """Stands for a kernel factory; nothing comes as far as lowering it."""


WORK = Workload(kernel, [{"block": 1}], arguments={"N": 1})


@pytest.mark.parametrize("value", [0, -1, 1.5, True, "4", float("nan")])
@pytest.mark.parametrize(
    ("settings", "name"),
    [
        (CompileSettings, "workers"),
        (CompileSettings, "group_size"),
        (BenchmarkSettings, "n_repeat"),
        (BenchmarkSettings, "n_final_rounds"),
        (Budget, "candidates"),
    ],
)
def test_counts_must_be_positive_whole_numbers(settings: Any, name: str, value: Any) -> None:
    with pytest.raises(UsageError, match=rf"{settings.__name__}: {name} must be a whole number above zero, got"):
        settings(**{name: value})


@pytest.mark.parametrize("value", [0, -0.5, True, "4", float("nan"), float("inf")])
@pytest.mark.parametrize(
    ("settings", "name"),
    [(CompileSettings, "compile_timeout_s"), (BenchmarkSettings, "benchmark_timeout_s"), (Budget, "seconds")],
)
def test_times_must_be_positive_numbers(settings: Any, name: str, value: Any) -> None:
    with pytest.raises(UsageError, match=rf"{settings.__name__}: {name} must be a number above zero, got"):
        settings(**{name: value})


@pytest.mark.parametrize("name", ["n_warmup", "n_final"])
@pytest.mark.parametrize("value", [-1, 0.5, True, None])
def test_counts_that_may_be_zero(name: Any, value: Any) -> None:
    BenchmarkSettings(**{name: 0})
    with pytest.raises(UsageError, match=f"{name} must be a whole number, zero or more, got"):
        BenchmarkSettings(**{name: value})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("many", "budget 'many'"),
        ("", "budget ''"),
        (0, "candidates must be"),
        ("-5s", "seconds must be"),
        ("0s", "seconds must be"),
        (2.5, "give a number of candidates"),
        (True, "candidates must be"),
        ([1], "give a number of candidates"),
    ],
)
async def test_budgets_that_are_none(text: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        await tune(WORK, budget=text)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"target": "hip"}, TargetError, "target 'hip' is not supported: use auto, cuda"),
        ({"target": {"kind": "hip"}}, TargetError, "target 'hip' is not supported"),
        ({"target": "cudda"}, TargetError, "target 'cudda' is not supported: use auto, cuda"),
        ({"strategy": "genetic"}, UsageError, "strategy 'genetic' is unknown; there is auto, exhaustive, random"),
        ({"devices": []}, UsageError, "devices: give 'all', 'cpu' or device numbers"),
        ({"devices": 0}, UsageError, "devices: give 'all', 'cpu' or device numbers such as [0, 1], got 0"),
        ({"devices": ["cuda:0"]}, UsageError, "devices: give 'all', 'cpu' or device numbers"),
        (
            {"compile": {"workers": 2}},
            UsageError,
            "compile must be atune.CompileSettings(…), got {'workers': 2}",
        ),
        ({"benchmark": CompileSettings()}, UsageError, "benchmark must be atune.BenchmarkSettings(…), got"),
        ({"pipeline": "no"}, UsageError, "pipeline must be True or False, got 'no'"),
        ({"log": logging.getLogger()}, UsageError, "log: give a logger of structlog, such as structlog.get_logger()"),
    ],
)
async def test_options_that_do_not_exist(options: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error) as caught:
        await tune(WORK, **options)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (lambda: CompileSettings(flags="-O1 -g"), r"list of texts, got '-O1 -g': did you mean \('-O1', '-g'\)?"),
        (lambda: CompileSettings(flags=[1]), r"CompileSettings: flags must be a list of texts, such as"),
        (lambda: CompileSettings(store="no"), r"store must be True or False, got 'no': did you mean False?"),
        (lambda: CompileSettings(cicc=1), r"CompileSettings: cicc must be True or False, got 1: did you mean True?"),
        (lambda: CompileSettings(store=None), r"CompileSettings: store must be True or False, got None"),
        (lambda: CompileSettings(pass_configs=3), r"pass_configs must be a dict, such as .*, got 3"),
        (lambda: CompileSettings(pass_configs={3: 1}), r"CompileSettings: pass_configs must be a dict"),
        (lambda: BenchmarkSettings(adaptive="perhaps"), r"adaptive must be True or False, got 'perhaps'$"),
        (lambda: BenchmarkSettings(adaptive=0), r"adaptive must be .*, got 0: did you mean False?"),
        (lambda: BenchmarkSettings(early_stop_factor=0.5), r"early_stop_factor must be 1 or more, got 0.5"),
        (lambda: BenchmarkSettings(input_seed="x"), r"BenchmarkSettings: input_seed must be a whole number, got 'x'"),
        (lambda: BenchmarkSettings(method=["events"]), r"method \['events'\] is unknown: use auto"),
    ],
)  # fmt: skip
def test_settings_of_a_wrong_kind_are_refused_when_they_are_made(settings: Callable[[], Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        settings()


@pytest.mark.parametrize("workload", [None, 5, object(), len])
async def test_what_is_no_workload(workload: Any) -> None:
    with pytest.raises(UsageError, match=r"workload: give an atune\.Workload or 'FILE\.py:NAME'"):
        await tune(workload)


@pytest.mark.parametrize(
    ("text", "message"), [("nowhere.py", "no file 'nowhere.py'"), (f"{__file__}:", "'' is not a Python name")]
)
async def test_files_that_are_not_there(text: str, message: str) -> None:
    with pytest.raises(WorkloadError, match=message):
        await tune(text)


@pytest.mark.parametrize(
    ("path", "message"),
    [
        (lambda folder: folder, "it is a folder: give a file in it"),
        (lambda folder: folder / "file" / "run.jsonl", "a part of the path is a file"),
        (lambda folder: folder / "file", "its only line is incomplete"),
        (lambda folder: folder / ("x" * 300), "the name is too long"),
        (lambda folder: "/dev/null", "must be a regular file"),
        (lambda folder: "/proc/run.jsonl", "cannot write the journal /proc/run.jsonl"),
    ],
)
async def test_journals_that_cannot_be_written(tmp_path: Path, path: Callable[[Path], Any], message: str) -> None:
    (tmp_path / "file").write_text("something")
    machine = FakeMachine()
    with pytest.raises(JournalError, match=message):
        await tune(machine=machine, journal=path(tmp_path))
    assert machine.opened == 0 and (tmp_path / "file").read_text() == "something"


class Guest(LocalMachine):
    """A machine over a server that is open already, which saves starting one for each mistake."""

    def __init__(self, host: LocalMachine, workload: str, **options: Any) -> None:
        super().__init__(parse_file_ref(workload), **options)
        self.host = host

    @asynccontextmanager
    async def open(self, *_: object) -> AsyncGenerator[None, None]:
        self.server, self.run_dir = self.host.server, self.host.run_dir
        self.workers.attach(self.server)
        yield


class TestReal:
    """What only the workers can tell."""

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"target": "c", "devices": ["cpu", "3"]}, "device '3' is not there: target c runs on the CPU alone"),
            ({"target": "cuda", "devices": ["cpu"]}, "target cuda does not run on device 'cpu': use --target c"),
            (
                {"target": "c", "benchmark": BenchmarkSettings(method="events")},
                "method 'events' does not time target c",
            ),
        ],
    )
    async def test_combinations_that_cannot_work(
        self, host: LocalMachine, options: dict[str, Any], message: str
    ) -> None:
        with pytest.raises(TargetError, match=message):
            await tune(machine=Guest(host, SCALED, **options))

    async def test_a_gpu_that_is_not_there(self) -> None:
        with pytest.raises(TargetError, match=r"device '77' is not there|no CUDA GPU is there"):
            await tune(SCALED, target="cuda", devices=["77"])

    async def test_a_compiler_that_is_not_there(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """PATH holds everything that it holds otherwise, but no C++ compiler."""
        for folder in reversed(os.environ["PATH"].split(":")):
            if os.path.isdir(folder):
                for file in Path(folder).iterdir():
                    if file.name not in ("g++", "c++") and not os.path.lexists(tmp_path / file.name):
                        (tmp_path / file.name).symlink_to(file)
        monkeypatch.setenv("PATH", str(tmp_path))
        assert shutil.which("g++") is None and shutil.which("ld") is not None
        with pytest.raises(TargetError, match=r"g\+\+ is missing: target c compiles with it; install g\+\+"):
            await tune(SCALED, target="c")

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("raise KeyError('oops')", r"work\.py cannot be loaded: KeyError: 'oops'"),
            ("import os; os._exit(3)", r"loading .*work\.py:WORKLOAD failed: .*exit"),
            ("x = 1", r"the file has no 'WORKLOAD'; it has no Workload at all"),
            ("WORKLOAD = 1", r"WORKLOAD is an int and must be an atune\.Workload"),
            ("import atune; WORKLOAD = atune.Workload(lambda a: a, {'b': [1]})", r"takes no argument 'b'; it takes a"),
        ],
    )
    async def test_files_that_do_not_load(self, host: LocalMachine, tmp_path: Path, text: str, message: str) -> None:
        (tmp_path / "work.py").write_text(text)
        with pytest.raises(UsageError, match=message):
            await tune(machine=Guest(host, f"{tmp_path}/work.py:WORKLOAD", target="c"))

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ("inputs=lambda: 1 / 0", "inputs raised ZeroDivisionError"),
            ("inputs=[]", r"inputs gave 0 tensors; the kernel has 1 output\(s\) \[1\] and 1 input"),
            ("inputs=[torch.zeros(3)]", r"input 0 is torch\.float32 \[3\]; the kernel takes float32 \[32\]"),
            ("reference=lambda x: 1 / 0", "the reference raised ZeroDivisionError"),
            (
                "reference=lambda x, y, z: x",
                r"'y' and 'z'; it gets the kernel's inputs, and there are 1 output\(s\) \[1\] and 1 input",
            ),
            ("reference=lambda x: 5", r"the reference returned an int"),
            ("out_idx=7", "out_idx 7: the kernel has 2 parameters"),
        ],
    )
    async def test_users_functions_that_do_not_fit(
        self, host: LocalMachine, tmp_path: Path, change: str, message: str
    ) -> None:
        lines = [
            "import atune, sys, torch",
            f"sys.path.append({str(KERNELS.parent)!r})",
            "from contract_kernels import scaled",
            f"W = atune.Workload(scaled, {{'scale': [1.0]}}, {change})",
        ]
        (tmp_path / "work.py").write_text("\n".join(lines))
        with pytest.raises(UsageError, match=message):
            await tune(machine=Guest(host, f"{tmp_path}/work.py:W", target="c"))
