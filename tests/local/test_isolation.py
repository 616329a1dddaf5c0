"""A kernel that breaks the compiler fails alone: its group is halved until it stands alone, the others are delivered.

Real compilers, real faults: for the CPU, and for CUDA as far as a machine without a GPU can, which is to the library.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from services import CompileOnly

from atune.engine.engine import Engine
from atune.engine.run_state import Recorder
from atune.engine.start import EngineSettings
from atune.journal.events import AnyEvent, BuildFailed, CandidateMeasured, GroupSplit
from atune.model.candidate import config_key
from atune.model.settings import BenchmarkSettings, CompileSettings
from atune.workload.pickling import FileRef

KERNELS = Path(__file__).parents[1] / "isolation_kernels.py"
GOOD = {"good 1", "good 2", "good 3", "good 4"}

pytestmark = pytest.mark.anyio
needs_nvcc = pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not installed")


@pytest.fixture(scope="module")
def broken_compilers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Put a gcc and a g++ on PATH that go wrong on the sources of certain candidates.

    One kills the compile worker that called it with SIGSEGV, one sleeps past every deadline, one has no memory.
    """

    def key(mode: str, **more: Any) -> str:
        return f"atune_kernel_{config_key({'mode': mode, **more})}"

    folder = tmp_path_factory.mktemp("bin")
    for name in ("gcc", "g++"):
        script = folder / name
        script.write_text(
            '#!/bin/sh\nfor a; do case "$a" in *.c|*.cpp) if [ -f "$a" ]; then\n'
            f'grep -q {key("crashes the linker" + chr(39) + "s parent")} "$a" && kill -SEGV $PPID && sleep 300\n'
            f'grep -q {key("sleeps in the linker")} "$a" && sleep 300\n'
            f'grep -q {key("no memory")} "$a" && ulimit -v 30000\n'
            f'fi;; esac; done\nPATH="${{PATH#*:}}" exec {name} "$@"\n'
        )
        script.chmod(0o755)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
        yield


async def compiled(name: str, target: str, settings: CompileSettings) -> tuple[dict[str, str], list[AnyEvent]]:
    """Run the engine and return how each candidate ended (``built`` or its failure's kind), and the events."""
    ref = FileRef(str(KERNELS), name)
    devices = ("cpu",) if target == "c" else ()
    machine = CompileOnly(ref, target=target, devices=devices, compile=settings)
    events: list[AnyEvent] = []
    recorder = Recorder(None, (events.append,))
    engine = Engine(machine, recorder, EngineSettings(compile=settings, benchmark=BenchmarkSettings(n_final=0)))
    await engine.run()
    modes = {i: entry.config["mode"] for i, entry in recorder.state.entries.items()}
    ends = {modes[e.index]: "built" for e in events if isinstance(e, CandidateMeasured)}
    failures = [e for e in events if isinstance(e, BuildFailed)]
    ends |= {modes[e.index]: e.kind for e in failures}
    assert len(ends) == len(modes) and len(failures) + sum(v == "built" for v in ends.values()) == len(modes)
    return ends, events


def failure_of(events: list[AnyEvent], word: str) -> BuildFailed:
    [found] = [e for e in events if isinstance(e, BuildFailed) and word in e.message + e.detail]
    return found


async def test_every_culprit_fails_alone_on_the_cpu(broken_compilers: None) -> None:
    """Eight ways to go wrong, four good kernels; everything that lowers is compiled as one group at first."""
    settings = CompileSettings(workers=1, group_size=16, compile_timeout_s=5)
    ends, events = await compiled("ON_CPU", "c", settings)
    assert ends == {
        **dict.fromkeys(GOOD, "built"),
        "raises": "lower",
        "segfaults": "crash",
        "sleeps": "timeout",
        "static assertion": "compile",
        "calls nothing": "compile",
        "crashes the linker's parent": "crash",
        "sleeps in the linker": "timeout",
        "no memory": "compile",
    }
    assert "static assertion failed" in failure_of(events, "ints are not that wide").message
    assert "nobody_has_defined_this" in failure_of(events, "nobody_has").message
    assert "SIGSEGV" in failure_of(events, "compiling ended its process").message
    assert "compiling ran past compile_timeout_s=5" in failure_of(events, "compiling ran past").message
    splits = [e for e in events if isinstance(e, GroupSplit)]
    assert len(splits[0].indices) == 8 and min(len(e.indices) for e in splits) == 2


@needs_nvcc
async def test_culprits_fail_alone_on_cuda_with_nvcc() -> None:
    settings = CompileSettings(workers=2, group_size=8, cicc=False)
    ends, events = await compiled("ON_GPU", "sm_90a", settings)
    assert ends == {
        **dict.fromkeys(GOOD - {"good 4"}, "built"),
        "segfaults": "crash",
        "static assertion": "compile",
        "calls nothing": "compile",
    }
    assert "static assertion failed" in failure_of(events, "ints are not that wide").message
    assert "nobody_has_defined_this" in failure_of(events, "nobody_has").message
    assert any(isinstance(e, GroupSplit) and len(e.indices) >= 3 for e in events)
