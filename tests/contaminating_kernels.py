"""Candidates and a check that change the process that they run in. Loaded by workers alone."""

from __future__ import annotations

import atexit
import builtins
import gc
import json
import os
import resource
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import torch
from contract_kernels import shifted
from workloads import doubled

import atune

LEFT = "ATUNE_TEST_SPOILINGS"
"""Environment variable: the folder with a file for each spoiling that the check has not done yet."""
LEFT_IN = Path(os.environ.get(LEFT, "/nowhere"))
N = 80
EVERY = 5
nothing: Any = None


def put(place: Any, name: str, value: Any) -> Callable[[], object]:
    return lambda: setattr(place, name, value)


def spins() -> None:
    while True:
        time.sleep(0.001)


def spins_apart() -> None:
    """Leave a process in a session of its own, as a daemon is."""
    if os.fork() == 0:
        os.setsid()
        spins()


def raises_soon() -> None:
    signal.signal(signal.SIGALRM, lambda *_: sys.exit("too late"))
    signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)


SPOILINGS: dict[str, Callable[[], object]] = {
    "alarms": raises_soon,
    "atexit": lambda: atexit.register(os._exit, 3),
    "chdir": lambda: os.chdir(tempfile.mkdtemp()),
    "closed descriptors": lambda: os.closerange(3, 60),
    "closed stdout": lambda: sys.stdout.close(),
    "dtype": lambda: torch.set_default_dtype(torch.float64),
    "environ": lambda: os.environ.clear(),
    "no files": lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3)),
    "gc": lambda: gc.set_threshold(1),
    "getpid": put(os, "getpid", lambda: 1),
    "handlers": lambda: signal.signal(signal.SIGCHLD, signal.SIG_IGN),
    "hooks": put(sys, "excepthook", nothing),
    "json": put(json, "dumps", nothing),
    "len": put(builtins, "len", lambda value: 7),
    "limit of files": lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1, 1)),
    "modules": lambda: sys.modules.clear(),
    "msgpack": put(msgspec.msgpack, "encode", lambda *_, **__: b"\xc1"),
    "niceness": lambda: os.nice(3),
    "open": put(builtins, "open", nothing),
    "PATH": lambda: os.environ.update(PATH="/opt/mytools"),
    "processes": spins_apart,
    "recursion": lambda: sys.setrecursionlimit(90),
    "structs": put(msgspec.structs, "replace", lambda *_, **__: None),
    "sys.path": lambda: sys.path.clear(),
    "threads": lambda: [threading.Thread(target=spins, daemon=True).start() for _ in range(3)],
    "umask": lambda: os.umask(0o777),
}
NAMES = tuple(SPOILINGS)


def kernel(k: int, spoils: bool) -> Any:
    """out = 2 x. With `spoils` each second candidate first spoils its process."""
    if spoils and k % 2:
        SPOILINGS[NAMES[k // 2]]()
    return shifted(k, n=N, size=N)


def spoiling_check(outputs: list[Any], expected: list[Any]) -> bool:
    """Compare; every few calls, over all processes, also do a spoiling that is left. Nothing is spoilt twice."""
    calls = LEFT_IN / "calls"
    calls.write_text(number := f"{int(calls.read_text()) + 1:04}")  # as long each time, for the limit of a file's size
    names = [name for name in NAMES if (LEFT_IN / name).exists()]
    if names and int(number) % EVERY == 0:
        (LEFT_IN / names[0]).unlink()
        SPOILINGS[names[0]]()
    return torch.equal(outputs[0], expected[0])


SPOILT = atune.Space(k=list(range(2 * len(NAMES) + 1)))
COMPILING = atune.Workload(kernel, SPOILT, arguments={"spoils": True}, reference=doubled, out_idx=1)
MEASURING = atune.Workload(
    kernel, atune.Space(k=list(range(N))), arguments={"spoils": False}, reference=doubled, check=spoiling_check,
    out_idx=1,
)  # fmt: skip
PLAIN = atune.Workload(kernel, atune.Space(k=[0]), arguments={"spoils": False}, reference=doubled, out_idx=1)
