"""The fork server's program: it imports the heavy modules once, and then forks workers that have these modules.

The server and each worker lead their own process groups, so that one signal also reaches the compilers that a worker
has started. Three mechanisms end all processes when the parent ends:

- The lifeline is a pipe whose write end only the parent holds. When the write end closes, the kernel itself SIGKILLs
  every worker's group, even while native code holds the GIL. The lifeline is armed before any heavy module is imported.
  While the server is importing, the kernel also kills the server's own group. When the server is serving, it gets
  SIGCONT instead, so that even a stopped server cleans up after its workers.
- The server watches the parent's pidfd, because a process forked from the parent may also hold the write end.
- The server and each worker are subreapers. Processes that a worker started stay below the worker, even in another
  session. When the worker ends, these processes become children of the server, which kills and reaps them. No other
  process becomes a child of the server.

The module imports only the standard library, and the parent runs it by its path, not as a module of its package. So no
other module is imported before the lifeline is armed.
"""

from __future__ import annotations

import ctypes
import faulthandler
import fcntl
import gc
import importlib
import json
import os
import resource
import select
import signal
import socket
import struct
import sys
import time
import traceback
from builtins import bytearray, getattr, len, memoryview  # as they are before a candidate replaces them
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from types import ModuleType
from typing import Any, NoReturn

REQUEST, REPLY = struct.Struct("!QIQ"), struct.Struct("!QIIQ")
"""Headers of frames. A header has the request's number, which the reply repeats, and the sizes of the frame's parts.
The parts of a request are (entry, payload). The parts of a reply are (empty, empty, result). If the called function
raised an exception, the parts are (name of the exception's class, message, tail of the traceback)."""

F_SETSIG = 10
PR_SET_CHILD_SUBREAPER = 36
CONTROL_BYTES = 1 << 18
TRACEBACK_BYTES = 8192
FIRST_PRIVATE_FD = 64
"""Lowest descriptor for a worker's socket, or half of the worker's limit of open files if that number is lower."""
FILES = 4096
"""Number of files that a worker may have open, unless the user's limit is lower."""
WORKER = "ATUNE_WORKER"
"""Environment variable that holds a worker's pid. The worker's children inherit the variable, but have other pids."""
HUNG_UP = 113
"""Exit status of a worker if the code that it ran has closed its socket."""
HUNG_UP_WORDS = "closed the socket for its replies"
OUTSIDE = frozenset({signal.SIGKILL, signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGQUIT})
"""Signals that come from outside. Other signals, such as SIGSEGV, are caused by the code that the process runs."""
FAULTS = signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT
"""Signals that faulthandler reports. Workers drop the handlers that preloaded libraries have set for these signals. For
example, tvm_ffi's handler allocates memory, so it would hang forever in a process whose heap is damaged."""
SWEEP_S = 0.1
"""Longest wait, in seconds, for killed processes to end. SIGKILL takes far less time unless the kernel hangs."""
END_S = 2
"""Seconds after which the server exits, even if a process that the server killed has not ended."""


def main() -> NoReturn:
    """Serve until the parent hangs up, and then end the whole process group, including this process."""
    config = json.loads(sys.argv.pop())  # the user's modules must not see it
    os.setpgid(0, 0)
    lifeline = arm_lifeline(config["lifeline"])
    # The descriptor was inheritable only for this program; modules' child processes and compilers must not get it.
    os.set_inheritable(config["control"], False)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    set_limits()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides what an interrupt means
    sys.path[:] = config["path"]
    server = ForkServerMain(socket.socket(fileno=config["control"]), lifeline, config["folder"])
    try:
        server.report(op="ready", **preload(config["preload"]))
        parent = os.pidfd_open(config["parent"])
        if os.getppid() == config["parent"]:  # otherwise another process may have the parent's pid by now
            server.serve(parent)
    except BrokenPipeError:
        pass  # the parent hung up in the middle of a report
    except BaseException:
        traceback.print_exc()
    server.end()


def set_limits() -> None:
    """Disable core files, because candidates may crash, and allow enough open files."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < FILES:
        resource.setrlimit(
            resource.RLIMIT_NOFILE, (FILES if hard == resource.RLIM_INFINITY else min(FILES, hard), hard)
        )


def arm_lifeline(lifeline: int) -> int:
    """Have the kernel SIGKILL this process group as soon as the parent's end of the pipe closes.

    The receiver of the signal is a property of the open file description, so each process group opens the pipe again.
    Closes `lifeline`, and returns the new descriptor.
    """
    own = os.open(f"/proc/self/fd/{lifeline}", os.O_RDONLY | os.O_NONBLOCK)
    fcntl.fcntl(own, fcntl.F_SETOWN, -os.getpgrp())
    fcntl.fcntl(own, F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(own, fcntl.F_SETFL, os.O_RDONLY | os.O_NONBLOCK | os.O_ASYNC)
    with suppress(BlockingIOError):  # nothing to read: the parent lives
        os.read(own, 1)
        os.killpg(0, signal.SIGKILL)  # end of file: the parent ended before the signal was armed
    os.close(lifeline)
    return own


def preload(modules: list[str]) -> dict[str, Any]:
    """Import `modules`. Returns the seconds that this took, the text of an error (or None), and the missing module (or
    None)."""
    start, error, absent = time.monotonic(), None, None
    try:
        import_all(modules)
    except BaseException as exc:
        traceback.print_exc()
        kind, message, _ = failure(exc)
        error = f"{kind.decode()}: {message.decode()}"
        absent = exc.name if isinstance(exc, ModuleNotFoundError) else None
    return {"seconds": time.monotonic() - start, "error": error, "absent": absent}


def import_all(modules: Sequence[str]) -> None:
    """Import `modules` without garbage collections, which would take a third of the time and free almost nothing.

    Later collections skip the imported objects, so in a worker, the memory pages of these objects stay shared.
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        for name in modules:
            importlib.import_module(name)
    finally:
        gc.freeze()
        if collects:
            gc.enable()


def children_of(pid: int) -> set[int]:
    """Return the pids of a process's children, including adopted orphans; none if the process is gone."""
    children: set[int] = set()
    with suppress(OSError):
        try:
            for task in os.listdir(f"/proc/{pid}/task"):
                with suppress(ProcessLookupError), open(f"/proc/{pid}/task/{task}/children", "rb") as file:
                    children.update(map(int, file.read().split()))
        except FileNotFoundError:  # the task has ended, or this kernel has no such files
            if os.path.exists(f"/proc/{pid}"):
                return {
                    child for child in map(int, filter(str.isdigit, os.listdir("/proc"))) if parent_of(child) == pid
                }
    return children


def parent_of(pid: int) -> int:
    """Return the pid of a process's parent; 0 if the process is gone."""
    with suppress(OSError), open(f"/proc/{pid}/stat", "rb") as file:
        return int(file.read().rpartition(b") ")[2].split()[1])
    return 0


def descendants(pids: Iterable[int]) -> set[int]:
    below: set[int] = set()
    queue = list(pids)
    while queue:
        new = children_of(queue.pop()) - below
        below |= new
        queue += new
    return below


class ForkServerMain:
    """Forks, kills and reaps workers on the parent's orders, and reports every exit. One thread, because it forks."""

    def __init__(self, control: socket.socket, lifeline: int, folder: str) -> None:
        self.control, self.lifeline, self.folder = control, lifeline, folder
        self.libc = ctypes.CDLL(None)
        self.adopt_orphans()
        self.woken, self.wakeup = socket.socketpair()
        self.parent = -1
        self.pids: dict[int, int] = {}
        """Pids by worker number. A pid is removed when its worker is reaped, so signals to the pids here are safe."""
        self.own: set[int] = set()
        """Pids of processes that the imported modules started. These processes belong to no worker."""

    def adopt_orphans(self) -> None:
        """Make this process the parent of its descendants when they become orphans."""
        self.libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)

    def report(self, **message: Any) -> None:
        self.control.send(json.dumps(message).encode())

    def serve(self, parent: int) -> None:
        """Serve until the parent has hung up or is gone. `parent`: the parent's pidfd."""
        self.wakeup.setblocking(False)
        signal.set_wakeup_fd(self.wakeup.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self.parent = parent
        self.own = children_of(os.getpid())
        fcntl.fcntl(self.lifeline, F_SETSIG, signal.SIGCONT)  # from now on the loop itself sees the lifeline's end
        poll = select.poll()
        for source in (self.control, self.woken, self.parent, self.lifeline):
            poll.register(source, select.POLLIN)
        while True:
            self.reap(os.WNOHANG)
            ready = {fd for fd, _ in poll.poll()}
            if not ready.isdisjoint((self.parent, self.lifeline)):
                return
            if self.woken.fileno() in ready:
                self.woken.recv(4096)
            with suppress(ValueError, TypeError, KeyError, RecursionError):  # a candidate's code wrote the message
                if self.control.fileno() in ready and not self.obey():
                    return

    def obey(self) -> bool:
        """Receive a message and carry out its order. Returns False if the parent hung up."""
        text, fds, _, _ = socket.recv_fds(self.control, CONTROL_BYTES, 2, socket.MSG_CMSG_CLOEXEC)
        if not text:
            return False
        message = json.loads(text)
        if message["op"] == "kill":
            if not self.kill(message["id"]):
                self.report(op="exited", id=message["id"], how="never started")
            return True
        try:
            sys.stdout.flush()
            sys.stderr.flush()
            pid = os.fork()
        except OSError as exc:
            self.report(op="exited", id=message["id"], how=f"cannot fork: {exc}")
        else:
            if pid == 0:
                self.become_worker(message, fds)
            with suppress(OSError):  # the child does the same; whichever is first, no kill can miss the group
                os.setpgid(pid, pid)
            self.pids[message["id"]] = pid
            self.report(op="forked", id=message["id"], pid=pid)
        for fd in fds:
            os.close(fd)
        return True

    def kill(self, number: int) -> bool:
        """SIGKILL a worker's process group. Returns False if no worker has this number (any more)."""
        if number in self.pids:
            with suppress(ProcessLookupError):
                os.killpg(self.pids[number], signal.SIGKILL)
        return number in self.pids

    def reap(self, options: int) -> None:
        """Reap ended processes. If an ended process was a worker, kill its remaining processes, and report its end."""
        with suppress(ChildProcessError):
            while (ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT | options)) is not None:
                number = next((n for n, pid in self.pids.items() if pid == ended.si_pid), None)
                if number is not None:
                    self.kill(number)  # before the pid is free again, because compilers must not outlive their worker
                    del self.pids[number]
                _, status = os.waitpid(ended.si_pid, 0)
                self.own.discard(ended.si_pid)
                self.sweep()
                if number is not None:
                    code = os.waitstatus_to_exitcode(status)
                    self.report(op="exited", id=number, how=describe(code), outside=from_outside(code))

    def sweep(self) -> None:
        """SIGKILL and reap processes that ended workers left running, level by level. Their pids cannot be reused
        yet."""
        give_up = time.monotonic() + SWEEP_S
        while orphans := children_of(os.getpid()) - self.own - set(self.pids.values()):
            for pid in orphans:
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
            if time.monotonic() > give_up:
                return  # SIGCHLD will tell when they have ended
            time.sleep(0.001)
            for pid in orphans:
                with suppress(ChildProcessError):
                    os.waitpid(pid, os.WNOHANG)

    def end(self) -> NoReturn:
        """Kill and reap every worker and the processes that it left. Then end all processes of this group."""
        signal.alarm(END_S)  # ends this process if the kernel hangs while it ends another process
        self.own.clear()
        for number in self.pids:
            self.kill(number)
        self.sweep()
        while children_of(os.getpid()):
            with suppress(OSError):  # nobody receives the reports anymore
                self.reap(0)
        os.killpg(0, signal.SIGKILL)
        os._exit(0)

    def become_worker(self, order: dict[str, Any], fds: list[int]) -> NoReturn:
        """Turn this freshly forked child into the worker that `order` describes. Never returns to the server's code."""
        try:
            os.setpgid(0, 0)
            arm_lifeline(self.lifeline)
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for sock in (self.control, self.woken, self.wakeup):
                sock.close()
            os.close(self.parent)
            self.adopt_orphans()
            os.dup2(fds[1], 1)
            os.dup2(fds[1], 2)
            # High, because native code writes to low descriptors by number. The descriptor is closed in every compiler.
            most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
            least = FIRST_PRIVATE_FD if most == resource.RLIM_INFINITY else min(FIRST_PRIVATE_FD, most // 2)
            replies = socket.socket(fileno=fcntl.fcntl(fds[0], fcntl.F_DUPFD_CLOEXEC, least))
            for fd in fds:
                os.close(fd)
            for fault in FAULTS:
                signal.signal(fault, signal.SIG_DFL)
            faulthandler.enable()
            with suppress(OSError):  # the program's working folder, unless it was removed
                os.chdir(self.folder)
            for stream in (sys.stdout, sys.stderr):
                stream.reconfigure(line_buffering=True, errors="backslashreplace")  # type: ignore[union-attr]
            # If memory runs out, the kernel should kill a worker before the user's program.
            with suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
                file.write("500")
            sys.modules["__main__"] = ModuleType("__main__")  # gets those parts of the program that are sent
            os.environ.update(order["env"])
            os.environ[WORKER] = str(os.getpid())
            os.nice(order["nice"])
            if order["cpus"] is not None:
                os.sched_setaffinity(0, order["cpus"])
            work(replies, self.libc)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)


def work(replies: socket.socket, libc: ctypes.CDLL) -> NoReturn:
    """Answer requests one after another, until the parent closes the socket."""
    pid = os.getpid()
    while True:
        number, (entry, payload) = receive(replies)
        try:
            module, _, name = entry.decode().partition(":")
            reply = (b"", b"", memoryview(getattr(importlib.import_module(module), name)(payload)).cast("B"))
        except BaseException as exc:
            reply = failure(exc)
        for stream in (sys.stdout, sys.stderr):
            with suppress(BaseException):  # the user's code may have closed or replaced the stream
                stream.flush()
        libc.fflush(None)
        if os.getpid() != pid:  # a child that the called code forked; only the worker itself may answer
            os._exit(0)
        try:
            replies.sendall(REPLY.pack(number, *map(len, reply)))
            for part in reply:
                replies.sendall(part)
        except OSError:
            os._exit(HUNG_UP)
        del payload, reply  # free the memory, because the next request may come much later


def failure(exc: BaseException) -> tuple[bytes, bytes, memoryview]:
    """Describe `exc` as the three parts of a reply."""
    kind = encoded(lambda: type(exc).__name__, "the class's name")
    message = encoded(lambda: str(exc), "str()")
    text = encoded(lambda: "".join(traceback.format_exception(exc)), "its traceback")
    return kind, message, memoryview(text[-TRACEBACK_BYTES:])


def encoded(make: Callable[[], str], what: str) -> bytes:
    """Return text about a user's exception. `make` may itself raise, or return text that cannot be encoded."""
    try:
        return str.encode(make(), errors="backslashreplace")
    except BaseException as broken:
        return f"<no message: {what} raised {type(broken).__name__}>".encode(errors="backslashreplace")


def receive(replies: socket.socket) -> tuple[int, list[bytes]]:
    """Read a whole frame. If the parent has closed the socket, end the process."""

    def exactly(size: int) -> bytes:
        buffer, filled = memoryview(bytearray(size)), 0
        while filled < size:
            try:
                count = replies.recv_into(buffer[filled:])
            except OSError:
                os._exit(HUNG_UP)
            if count == 0:
                os._exit(0)
            filled += count
        return bytes(buffer)

    number, *sizes = REQUEST.unpack(exactly(REQUEST.size))
    return number, [exactly(size) for size in sizes]


def from_outside(code: int | None) -> bool:
    """Tell whether a signal from outside ended a process. `code`: as in `describe`."""
    return code is not None and -code in OUTSIDE


def describe(code: int | None) -> str:
    """Describe how a process ended. `code`: the exit code as in `subprocess`, which is negative for a signal."""
    if code == HUNG_UP:
        return HUNG_UP_WORDS
    if code is None or code >= 0:
        return f"exited with status {code}"
    name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
    return f"killed by {name}" + (" (out of memory, or from outside)" if code == -signal.SIGKILL else "")


if __name__ == "__main__":
    main()
