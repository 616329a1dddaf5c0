"""Entry points that the workers of test_pool.py run, and, as a script, a parent process for it to kill."""

from __future__ import annotations

import ctypes
import json
import os
import resource
import signal
import subprocess
import sys
import time


def echo(payload: bytes) -> bytes:
    return payload


def fail(payload: bytes) -> bytes:
    raise ValueError(payload.decode())


def leave(payload: bytes) -> bytes:
    raise SystemExit(3)


def interrupt(payload: bytes) -> bytes:
    raise KeyboardInterrupt


class Speechless(BaseException):
    def __str__(self) -> str:
        raise KeyboardInterrupt


def speechless(payload: bytes) -> bytes:
    raise Speechless


def surrogate(payload: bytes) -> bytes:
    raise ValueError("lone \udcff")


def no_bytes(payload: bytes) -> bytes:
    return "text"  # type: ignore[return-value]


def say(payload: bytes) -> bytes:
    print(payload.decode())
    return b""


def crash(payload: bytes) -> bytes:
    print("last words \udcff")
    os.write(2, b"\xff raw")
    os.kill(os.getpid(), signal.SIGSEGV)
    return b""


def end(payload: bytes) -> bytes:
    os._exit(int(payload))


def sleep(payload: bytes) -> bytes:
    print("going to sleep")
    time.sleep(float(payload))
    return b""


def spin(payload: bytes) -> bytes:
    while True:
        pass


def wait_at(payload: bytes) -> bytes:
    """Wait until nobody has the pipe of that path open for writing any more."""
    with open(payload) as gate:
        gate.read()
    return b""


def hold_gil(payload: bytes) -> bytes:
    print("holding the GIL", flush=True)
    ctypes.PyDLL(None).sleep(60)
    return b""


def run_compiler(payload: bytes) -> bytes:
    """Wait for a g++ whose cc1plus waits for its source, and for a `sleep`."""
    command = ["g++", "-x", "c++", "-c", "-o", "/dev/null", "-"]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as compiler, subprocess.Popen(["sleep", "60"]):
        compiler.wait()
    return b""


def crash_beside_compiler(payload: bytes) -> bytes:
    subprocess.Popen(["sleep", "60"])
    os.kill(os.getpid(), signal.SIGSEGV)
    return b""


def start_daemon(payload: bytes) -> bytes:
    """Start a process as daemons start, in a session of its own, whose child has one of its own; then do `payload`."""
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.execvp("sh", ["sh", "-c", "setsid sleep 600 & exec sleep 601"])
        os._exit(0)
    os.wait()
    return {b"return": echo, b"raise": fail, b"hang": hold_gil, b"crash": crash}[payload](payload)


def noise(payload: bytes) -> bytes:
    """Print from Python, through C's buffers, and straight to the descriptors."""
    ctypes.CDLL(None).printf(b"from printf\n")
    print("from print")
    for fd in (1, 2):
        os.write(fd, b"\0\xff straight\n" * 10)
    subprocess.run(["echo", "from a child"], check=True)
    return payload


def noisy_failure(payload: bytes) -> bytes:
    noise(payload)
    return end(b"4")


def settings(payload: bytes) -> bytes:
    """Tell what this process was started with."""
    facts = {
        "env": os.environ.get("ATUNE_TEST"),
        "both": os.environ.get("ATUNE_BOTH"),
        "pythonpath": os.environ.get("PYTHONPATH"),
        "cpus": sorted(os.sched_getaffinity(0)),
        "nice": os.nice(0),
        "group": os.getpgrp() == os.getpid(),
        "modules": sorted({"anyio", "colorsys"} & set(sys.modules)),
        "stdin": os.readlink("/proc/self/fd/0"),
        "cwd": os.getcwd(),
    }
    return json.dumps(facts).encode()


def childs_descriptors(payload: bytes) -> bytes:
    """Tell what a child that was told to keep everything it inherits has open."""
    script = "import os; print([os.readlink(e.path) for e in os.scandir('/proc/self/fd') if int(e.name) > 2])"
    done = subprocess.run([sys.executable, "-c", script], close_fds=False, capture_output=True, check=True)
    return done.stdout


def own_sockets(payload: bytes) -> bytes:
    with os.scandir("/proc/self/fd") as entries:
        links = [os.readlink(entry.path) for entry in entries]
    return json.dumps([link for link in links if link.startswith("socket:")]).encode()


async def parent(run_dir: str, mode: str) -> None:
    """Start a server and two workers, print their groups as one line, and stay until killed."""
    import anyio
    from fork_servers import fork_server

    preload = ["gil_at_import"] if mode == "preload" else ["json"]
    async with fork_server(run_dir, preload) as server, anyio.create_task_group() as tasks:
        if mode != "preload":
            workers = [await server.spawn("test") for _ in range(2)]
            for worker in workers:
                tasks.start_soon(worker.call, "pool_targets:start_daemon", b"return")
        child = 0
        if mode.endswith("-forked") and (child := os.fork()) == 0:
            signal.pause()
        print(json.dumps([child, *server.pids()]), flush=True)
        await anyio.sleep_forever()


if __name__ == "__main__":
    import anyio

    anyio.run(parent, sys.argv[1], sys.argv[2])


def limits(payload: bytes) -> bytes:
    found = resource.getrlimit(resource.RLIMIT_CORE), resource.getrlimit(resource.RLIMIT_NOFILE)
    return json.dumps([found, os.getcwd()]).encode()
