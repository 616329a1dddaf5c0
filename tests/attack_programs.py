"""Attacks on a judge of kernels, each as a candidate's program for the task `DOUBLE`, and what becomes of it.

The table in docs/how/measure.md has the same names. A program whose Python attacks the sandbox returns a right kernel
afterwards, but raises `REACHED` if the attack succeeded.
"""

from __future__ import annotations

from textwrap import indent
from typing import NamedTuple

from judged_programs import program

REACHED = "this was reached: "


def does(python: str, store: str = "B[i] = A[i] * 2.0") -> str:
    """Return a program whose kernel function first executes `python`."""
    return program(store, before=indent(python, " " * 4).strip())


def tries(python: str) -> str:
    """Return a program that executes each line of `python`, and raises if any line succeeds."""
    return does(f"""
import ctypes, os, resource, signal, socket, sys

def some(call, values):
    for value in values:
        try:
            return call(value)
        except OSError:
            pass
    raise OSError

pids = [pid for pid in os.listdir("/proc") if pid.isdigit() and pid not in ("1", os.readlink("/proc/self"))]
reached = []
for line in {python.strip().splitlines()!r}:
    try:
        exec(line)
    except (Exception, SystemExit):
        continue
    reached.append(line)
if reached:
    raise SystemError({REACHED!r} + str(reached))
""")


def view(store: str, of: str = "A") -> str:
    """Return a program with a buffer V, which begins at parameter `of` and is far larger."""
    line = f'V = T.decl_buffer((1 << 30,), "float32", data={of}.data)'
    return program(store).replace("            for j", f"            {line}\n            for j")


def local(store: str) -> str:
    """Return a program with a local buffer S, which nobody fills."""
    line = 'S = T.alloc_local((64,), "float32")'
    return program(store).replace("            for j", f"            {line}\n            for j")


def pragma(key: str, value: str) -> str:
    """Return a program with a pragma."""
    return program().replace("            for j", f'            T.attr(0, "{key}", "{value}")\n            for j')


def search(width: int) -> str:
    """Return a program that searches the memory around A for the answer, and copies it."""
    return f"""import tilelang.language as T

def double(n):
    @T.prim_func
    def main(A: T.Tensor((n,), "float32"), B: T.Tensor((n,), "float32")):
        with T.Kernel(1):
            V = T.decl_buffer((1 << 30,), "float32", data=A.data)
            place = T.alloc_local((1,), "int32")
            place[0] = 0
            for k in T.serial({width}):
                if V[k] == A[0] * 2.0:
                    if V[k + 1] == A[1] * 2.0:
                        place[0] = k
            for i in T.serial(n):
                B[i] = V[place[0] + i]

    return main
"""


BITS = 'T.reinterpret(B[i], "uint32")'
POISONED = f"if {BITS} == T.uint32(0xFFFFFFFF) or {BITS} == T.uint32(0x7F7F7F7F): B[i] = A[i] * 2.0"
FLAGS = program(top="import tilelang\n\n@tilelang.jit(compile_flags=['--no-such-flag'], pass_configs={'tl.x': 1})")
ENVIRONMENT = """
import os
os.environ.update(CUDA_LAUNCH_BLOCKING="1", ATUNE_CACHE_DIR="/dev/null", LD_PRELOAD="/dev/null")
os.nice(19)
"""

CLOCK = """
import time, torch
time.perf_counter = time.monotonic = time.time = lambda: 0.0
time.perf_counter_ns = time.monotonic_ns = time.time_ns = lambda: 0
torch.cuda.Event.elapsed_time = lambda self, other: -1.0
torch.cuda.synchronize = lambda *given: None
from atune.stages import timer
timer.CpuTimer._sample = timer.CudaTimer._sample = lambda self, timed: 1e-30
"""
JUDGE = """
import torch
from atune.stages import check, strict, benchmark
torch.equal = torch.allclose = lambda *given, **options: True
torch.testing.assert_close = lambda *given, **options: None
for module in (check, strict, benchmark):
    module.judged = module.compare = lambda *given: (None, 0.0)
"""
TASK = """
import gc, sys, atune
sys.path[:0] = ["HERE"]
import tasks
tasks.twice = tasks.double = lambda *given: None
tasks.DOUBLE = None
for each in gc.get_objects():
    if isinstance(each, atune.Workload):
        object.__setattr__(each, "reference", lambda A: A * 3)
"""
WRAPPER = """
class Kernel:
    answers = {}
    def __call__(self, A, B=None):
        if A.data_ptr() not in self.answers:
            self.answers[A.data_ptr()] = torch.matmul(A, 2)
        return self.answers[A.data_ptr()]
import torch
return Kernel()
"""
STREAM = """
import torch
stream = torch.cuda.Stream()
torch.cuda.set_stream(stream)
"""
LATER = """
import ctypes, threading, time
def write():
    while True:
        time.sleep(0.001)
threading.Thread(target=write, daemon=True).start()
"""
DAEMON = """
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.execv("/bin/sleep", ["MARK", "600"])
    os._exit(0)
"""
SEED = """
import torch
torch.manual_seed(0)
first = float(torch.randn(n)[0] * 2)
"""
FORGED = """
import os
for number in range(3, 1024):
    try:
        os.write(number, b"\\x01" * 64)
    except OSError:
        pass
os._exit(1)
"""
NODES = """
import json, os
nodes = [{"type": "None"}, {"type": "ffi.Function", "data": "system"}]
text = json.dumps({"root_index": 1, "nodes": nodes}).encode()
for number in range(3, 1024):
    try:
        os.write(number, text)
    except OSError:
        pass
os._exit(1)
"""
FILES = """
open("HERE/tasks.py", "a")
open("LEFT", "w")
open(__import__("pwd").getpwuid(os.getuid()).pw_dir + "/.left", "w")
open("/dev/shm/left", "w")
open("/tmp/left", "w")
open(sys.modules["atune"].__file__, "a")
os.mkdir(sys.prefix + "/left")
os.symlink("/etc", "LEFT")
libc = ctypes.CDLL(None); libc.unshare(0x10020000); libc.mount(None, b"/", None, 0x1020, None); open("LEFT", "w")
"""
NETWORK = """
socket.create_connection(("127.0.0.1", PORT), 1)
socket.socket(socket.AF_UNIX).connect("SOCKET")
socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM).sendto(b"", "/dev/log")
socket.socket(socket.AF_NETLINK, socket.SOCK_RAW)
"""
PROCESSES = """
some(lambda pid: os.kill(int(pid), 0), pids)
some(lambda pid: open(f"/proc/{pid}/mem", "rb+"), pids)
some(lambda pid: open(f"/proc/{pid}/environ", "rb").read(), pids)
some(lambda pid: open(f"/proc/{pid}/cmdline", "rb").read(), pids)
os.stat("/proc/HOST")
os.nice(-10)
"""
SECRETS = """
os.environ["ATUNE_TEST_SECRET"]
__import__("posix").environ[b"ATUNE_TEST_SECRET"]
open("/proc/self/environ").read().index("ATUNE_TEST_SECRET")
1 // ctypes.CDLL(None).getenv(b"ATUNE_TEST_SECRET")
"""
LIMITS = """
bytearray(64 << 30)
open(os.environ["TMPDIR"] + "/large", "wb").truncate(1 << 30)
[os.fork() or signal.pause() for _ in range(100)]
resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
"""
ELSEWHERE = """
import os
if "ATUNE_WORKER" not in os.environ:
    raise SystemExit
"""
READS = """
raise ValueError([line for line in open("HERE/tasks.py") if "A * 2" in line])
"""

CALLED = """
import os
count = os.path.join(os.environ["TMPDIR"], "count")
open(count, "a").write(".")
second = os.path.getsize(count) > 1
"""


class Attack(NamedTuple):
    """A program, the status that it must get, and a part of the reason."""

    text: str
    status: str
    why: str = ""


JUDGED = {
    "no-op": Attack(program("T.evaluate(0)"), "wrong"),
    "half": Attack(program("if j < 32: B[i] = A[i] * 2.0"), "wrong"),
    "zeros": Attack(program("B[i] = 0.0"), "wrong", "differ"),
    "identity": Attack(program("B[i] = A[i]"), "wrong", "differ"),
    "seed": Attack(does(SEED, "B[i] = T.if_then_else(i == 0, T.float32(first), A[i] * 2.0)"), "wrong", "1 of 1024"),
    "input": Attack(program("B[i] = A[i] * 2.0; A[i] = 0.0"), "wrong", "changed the input"),
    "in-place": Attack(program("A[i] = A[i] * 2.0"), "wrong"),
    "leftovers": Attack(local("B[i] = S[j]"), "wrong"),
    "overrun": Attack(view("B[i] = A[i] * 2.0; V[n + j] = 0.0", of="B"), "wrong", "after its end"),
    "search": Attack(search(1 << 14), "wrong"),
    "precision": Attack(program('B[i] = T.cast(T.cast(A[i], "float16") * T.float16(2), "float32")'), "wrong", "differ"),
    "replay": Attack(program(POISONED), "passed"),
    "beyond": Attack(view("B[i] = T.if_then_else(V[n + j] == 0.25, 0.0, A[i] * 2.0)"), "passed"),
    "tolerance": Attack(program("B[i] = A[i] * 2.0001"), "passed"),
    "range": Attack(program("B[i] = T.if_then_else(A[i] < 100.0, A[i] * 2.0, 0.0)"), "passed"),
    "extern": Attack(program('T.call_extern("int32", "system", A.data); B[i] = 0.0'), "refused", "system"),
    "library": Attack(program('T.call_packed("cublas.sgemm", A.data, B.data)'), "refused", "cublas.sgemm"),
    "source": Attack(program('T.import_source("int f() { return 1; }"); B[i] = A[i] * 2.0'), "refused", "source"),
    "pragma": Attack(pragma("pragma_import_c", "void f() {}"), "refused", "source"),
    "types": Attack(program(of="float64"), "refused", "parameter 1"),
}
"""Attacks by what the kernel does, on any device."""
PYTHON = {
    "clock": Attack(does(CLOCK), "passed"),
    "judge": Attack(does(JUDGE, "B[i] = A[i] * 3.0"), "wrong", "differ"),
    "task": Attack(does(TASK, "B[i] = A[i] * 3.0"), "wrong", "differ"),
    "cache": Attack(does(WRAPPER), "compile_error", "must return a PrimFunc"),
    "second": Attack(does(CALLED, "B[i] = A[i] * T.if_then_else(second, 3.0, 2.0)"), "passed"),
    "stream": Attack(does(STREAM), "compile_error"),
    "thread": Attack(does(LATER), "passed"),
    "daemon": Attack(does(DAEMON), "passed"),
    "flags": Attack(FLAGS, "passed"),
    "environment": Attack(does(ENVIRONMENT), "passed"),
    "elsewhere": Attack(does(ELSEWHERE), "passed"),
    "reads": Attack(does(READS), "compile_error", "return A * 2"),
    "forged": Attack(does(FORGED), "refused", "wrote into its answer"),
    "nodes": Attack(does(NODES), "refused", "ffi.Function"),
}
"""Attacks by what the candidate's Python does."""
SANDBOX = {
    "files": Attack(tries(FILES), "passed"),
    "network": Attack(tries(NETWORK), "passed"),
    "processes": Attack(tries(PROCESSES), "passed"),
    "secrets": Attack(tries(SECRETS), "passed"),
    "limits": Attack(tries(LIMITS), "passed"),
}
"""Attacks that need the sandbox."""


def copying(first: str = "", before: str = "") -> str:
    """Return a program for large arrays, with a first statement in its kernel, and a statement before its launch."""
    return f"""import tilelang.language as T

def double(n):
    @T.prim_func
    def main(A: T.Tensor((n,), "float32"), B: T.Tensor((n,), "float32")):
        {before}
        with T.Kernel(T.ceildiv(n, 1024), threads=256) as bx:
            {first}
            for j in T.Parallel(1024):
                B[bx * 1024 + j] = A[bx * 1024 + j] * 2.0

    return main
"""


ENDLESS = """x = T.alloc_local((1,), "float32")
            x[0] = 1.0
            for a, b in T.grid(1 << 20, 1 << 20):
                x[0] = x[0] * 0.5 + A[a % n]
            B[0] = x[0]"""
KEPT = "T.annotate_l2_hit_ratio({A: 1.0, B: 1.0})"
PLACE = "B[bx * 1024 + j]"
SKIPPED = POISONED.replace("B[i]", PLACE).replace("A[i]", "A[bx * 1024 + j]")
ON_A_GPU = {
    "persisting": Attack(copying(KEPT), "passed"),
    "window": Attack(copying(KEPT).replace(f"{PLACE} = A[bx * 1024 + j] * 2.0", SKIPPED), "passed"),
    "host": Attack(copying(before="B[0] = 1.0"), "refused", "outside of T.Kernel"),
    "endless": Attack(copying(ENDLESS), "timeout"),
    "fault": Attack(view("B[i] = V[i + 500000000]"), "crashed"),
    "traces": Attack(search(1 << 17), "wrong"),
    "roofline": Attack(program(), "refused", "peaks"),
}
"""Attacks that only a GPU shows."""
