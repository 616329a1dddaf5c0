"""A sandbox for a stranger's Python: no network, no GPU, no other processes, one folder. It needs user namespaces."""

from __future__ import annotations

import ctypes
import glob
import os
import resource
import struct
from collections.abc import Callable

from atune.workers.server_main import describe

MEMORY_BYTES, FILE_BYTES, PROCESSES, ANSWER_BYTES = 8 << 30, 64 << 20, 64, 16 << 20
"""Limits: bytes of memory in addition to the worker's memory, bytes of a file, number of processes and threads, and
bytes of the answer."""
NAMESPACES = 0x10000000 | 0x20000 | 0x20000000 | 0x40000000 | 0x8000000
"""CLONE_NEWUSER, NEWNS, NEWPID, NEWNET and NEWIPC. The process must have a single thread, as it has after a fork."""
MS_BIND, MS_REC_PRIVATE, MOUNT_SETATTR, AT_FDCWD, AT_RECURSIVE, READ_ONLY = 0x1000, 0x44000, 442, -100, 0x8000, 1
CAPABILITIES, PR_SET_SECCOMP, PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS = 0x20080522, 22, 24, 38
ARCHITECTURES = {"x86_64": (0xC000003E, 41), "aarch64": (0xC00000B7, 198)}
"""For each machine, the number of its architecture in seccomp, and the number of the system call ``socket``. Sockets
are refused because a network namespace does not isolate sockets with a path, and a daemon behind a socket could act for
a stranger."""
_libc = ctypes.CDLL(None, use_errno=True)


def isolate(folder: str, instead: str) -> tuple[str, str]:
    """Isolate this process and its later children. Return the reason if isolating fails (otherwise an empty text), and
    the folder to which the children can write.

    `folder`: the only folder to which the children can write. The children see `folder` at the path `instead`, so that
    the original folder at this path is hidden. Memory and the size of files are limited even if isolating fails.
    """
    uid, gid, scratch = os.geteuid(), os.getegid(), instead.encode()
    with open("/proc/self/statm") as file:
        _limit(resource.RLIMIT_AS, int(file.read().split()[0]) * resource.getpagesize() + MEMORY_BYTES)
    _limit(resource.RLIMIT_FSIZE, FILE_BYTES)
    try:
        _call("unshare", NAMESPACES)
        for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
            with open(f"/proc/self/{name}", "w") as file:
                file.write(text)
        _limit(resource.RLIMIT_NPROC, PROCESSES)
        _refuse_sockets()
        _call("mount", None, b"/", None, MS_REC_PRIVATE, None)
        _call("mount", folder.encode(), scratch, None, MS_BIND, None)
        _call("mount", b"none", b"/proc", b"tmpfs", 0, None)  # else the children see all processes
        for gpu in (path for path in glob.glob("/dev/nvidia*") if not os.path.isdir(path)):
            _call("mount", b"/dev/null", gpu.encode(), None, MS_BIND, None)
        for path, flags, sets, clears in ((b"/", AT_RECURSIVE, READ_ONLY, 0), (scratch, 0, 0, READ_ONLY)):
            attributes = (ctypes.c_uint64 * 4)(sets, clears, 0, 0)
            _call("syscall", MOUNT_SETATTR, AT_FDCWD, path, flags, attributes, ctypes.sizeof(attributes))
    except OSError as error:
        return f"{error.filename}: {error.strerror}", folder if os.path.exists(folder) else instead
    return "", instead


def answer_of(work: Callable[[], bytes]) -> bytes:
    """Return the answer of `work` from a child without capabilities. Raises `RuntimeError` for an invalid answer."""
    reading, writing = os.pipe()
    if (pid := os.fork()) == 0:
        try:
            os.closerange(3, writing)  # the worker's socket, through which a stranger could answer in its name
            os.closerange(writing + 1, os.sysconf("SC_OPEN_MAX"))
            for capability in range(64):
                _libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0)  # fails beyond the kernel's last capability
            _call("prctl", PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
            _call("capset", (ctypes.c_uint32 * 2)(CAPABILITIES, 0), (ctypes.c_uint32 * 6)())
            with open(writing, "wb") as file:
                file.write(work())
        finally:
            os._exit(1)
    os.close(writing)
    with open(reading, "rb") as pipe:
        answer = pipe.read(ANSWER_BYTES + 1)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if code == 1 and 0 < len(answer) <= ANSWER_BYTES:
        return answer
    raise RuntimeError("its kernel is too large" if answer else describe(code))


def _refuse_sockets() -> None:
    """Refuse system calls that may make sockets: ``socket``, ``io_uring_setup``, and calls of other architectures."""
    architecture, socket = ARCHITECTURES.get(os.uname().machine, (0, 0))
    steps = [(0x20, 0, 0, 4), (0x15, 0, 5, architecture), (0x20, 0, 0, 0), (0x15, 3, 0, socket), (0x15, 2, 0, 425)]
    steps += [(0x35, 1, 0, 0x40000000), (0x06, 0, 0, 0x7FFF0000), (0x06, 0, 0, 0x50001)]  # the end: allow, or EPERM
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in steps))
    _call("prctl", PR_SET_SECCOMP, 2, struct.pack("HP", len(steps), ctypes.addressof(code)), 0, 0)


def _limit(kind: int, most: int) -> None:
    hard = resource.getrlimit(kind)[1]
    resource.setrlimit(kind, (most, most) if hard == resource.RLIM_INFINITY else (min(most, hard), hard))


def _call(name: str, *arguments: object) -> None:
    """Call a function of the C library. Raises `OSError`."""
    if getattr(_libc, name)(*arguments) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), name)
