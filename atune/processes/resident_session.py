"""A child of the resident server: it answers one client, and becomes the client's fork server if it fits.

After that it is `ForkServerMain`, as in a program's own fork server. Its lifeline, control socket and log are the
client's, and it no longer needs the resident server.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import socket
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from atune.processes import server_main
from atune.processes.fit import Facts, Stamps, changed, difference, shadowed, take_over
from atune.processes.resident_place import SERVICE, SESSION, STATUS, STOP
from atune.processes.resident_service import Services

REQUEST_S = 5.0
"""Seconds that a client may take to send its request."""


class Imported(NamedTuple):
    """The modules that a resident server has imported, and the surroundings in which it imported them."""

    preload: list[str]
    before: Facts
    after: Facts
    stamps: Stamps
    packages: dict[str, str]
    """Files of the imported packages, by name."""
    environment: dict[str, tuple[str, str]]
    """Variables that importing set: the part that it put before the old value, and the whole value."""
    path: tuple[list[str], list[str]]
    """Entries that importing added before and behind those of `sys.path`."""

    def misfit(self, request: Mapping[str, Any]) -> str:
        """Say why these imports do not fit a client; empty if they do."""
        if request["preload"] != self.preload:
            return "it imported other modules"
        front, back = self.path
        return (
            difference(request["facts"], self.before, self.after)
            or changed(self.stamps)
            or shadowed(self.packages, [*front, *request["path"], *back])
        )

    def environment_of(self, env: Mapping[str, str]) -> dict[str, str]:
        """Return a client's environment with the changes that importing makes to it."""
        changed = dict(env)
        for name, (prefix, value) in self.environment.items():
            if env.get(name) != value:
                changed[name] = prefix + env[name] if prefix and name in env else value
        return changed


def imported_environment(before: Mapping[str, str], after: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    """Return the changes that importing made to the environment, as in `Imported.environment`."""
    found = {}
    for name, value in after.items():
        old = before.get(name, "")
        if value != before.get(name):
            found[name] = (value.removesuffix(old) if old else "", value)
    return found


def imported_path(before: Sequence[str], after: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the entries that importing added before and behind those of a search path."""
    first = next((place for place, entry in enumerate(after) if entry in before), len(after))
    new = [(place, entry) for place, entry in enumerate(after) if entry not in before]
    return [entry for place, entry in new if place < first], [entry for place, entry in new if place > first]


def answer(client: socket.socket, imported: Imported, told: Mapping[str, Any], services: Services) -> NoReturn:
    """Answer `client` in this freshly forked child; never return. `told`: the server's part of a ``status`` answer."""
    try:
        client.settimeout(REQUEST_S)
        asked, fds, _, _ = socket.recv_fds(client, 64, 8, socket.MSG_CMSG_CLOEXEC)
        if asked == STOP:
            os.kill(told["pid"], signal.SIGTERM)
            _reply(client, {"pid": told["pid"]})
        elif asked in (SESSION, SERVICE, STATUS):
            request = json.loads(_read(fds[0]))
            why = imported.misfit(request)
            if asked == STATUS:
                below = {*told["services"], *server_main.descendants(told["services"])}
                memory = sum(_memory(pid).get("pss_bytes", 0) for pid in below)
                _reply(client, {**told, **_memory(told["pid"]), "services_bytes": memory, "misfit": why})
            elif why:
                _reply(client, {"misfit": why})
            elif asked == SERVICE:
                _provide_service(client, imported, request, fds[1], services)
            else:
                services.close()
                _become_fork_server(client, imported, request, fds[1:])
    except OSError:
        pass  # the client left, or sent nothing
    except BaseException:
        with suppress(OSError):
            traceback.print_exc()
            sys.stderr.flush()
    finally:
        os._exit(0)


def _become_fork_server(
    client: socket.socket, imported: Imported, request: dict[str, Any], fds: Sequence[int]
) -> NoReturn:
    control, lifeline, watched, log = fds
    os.setpgid(0, 0)
    lifeline = server_main.arm_lifeline(lifeline)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    if why := take_over(request["program"]):
        _reply(client, {"misfit": why})
        os._exit(0)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    _set_environment(imported, request)
    server_main.set_limits()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    server = server_main.ForkServerMain(socket.socket(fileno=control), lifeline, request["folder"])
    own = os.pidfd_open(os.getpid())
    _reply(client, {"pid": os.getpid()}, [own])
    os.close(own)
    client.close()
    try:
        server.report(op="ready", seconds=0.0, error=None)
        server.serve(watched)
    except BrokenPipeError:
        pass  # the program hung up in the middle of a report
    except BaseException:
        traceback.print_exc()
    server.end()


def _provide_service(
    client: socket.socket, imported: Imported, request: dict[str, Any], watched: int, services: Services
) -> None:
    """Pass the client on to the service that it asks for. Without one, become that service, and end with it."""
    request["program"]["env"] = imported.environment_of(request["program"]["env"])
    fds = [client.fileno(), watched]
    if pid := services.pass_on(request, fds):
        _reply(client, {"pid": pid})
        return
    os.setpgid(0, 0)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    if why := take_over(request["program"]):
        _reply(client, {"misfit": why})
        return
    control = services.register(request)
    services.close()
    os.environ.clear()
    os.environ.update(request["program"]["env"])
    server_main.set_limits()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.chdir(request["folder"])
    _reply(client, {"pid": os.getpid()})
    module, _, function = request["entry"].partition(":")
    getattr(importlib.import_module(module), function)(control, client, watched)


def _set_environment(imported: Imported, request: dict[str, Any]) -> None:
    """Set the program's environment, search path and arguments, with the changes that importing makes to them."""
    os.environ.clear()
    os.environ.update(imported.environment_of(request["program"]["env"]))
    front, back = ([entry for entry in part if entry not in request["path"]] for part in imported.path)
    sys.path[:] = [*front, *request["path"], *back]
    sys.argv[:] = [server_main.__file__, request["arguments"]]
    time.tzset()


def _reply(client: socket.socket, message: Mapping[str, Any], fds: Sequence[int] = ()) -> None:
    socket.send_fds(client, [json.dumps(message).encode()], list(fds))


def _read(fd: int) -> bytes:
    """Read the file with a client's request, and close it."""
    with open(fd, "rb") as file:
        file.seek(0)
        return file.read()


def _memory(pid: int) -> dict[str, int]:
    """Return the memory, open files and threads of one of this user's processes."""
    found = {}
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]:
            name, size = line.split()[:2]
            if name in ("Rss:", "Pss:"):
                found[f"{name[:-1].lower()}_bytes"] = int(size) * 1024
        found["open_files"] = len(os.listdir(f"/proc/{pid}/fd"))
        found["threads"] = len(os.listdir(f"/proc/{pid}/task"))
    return found
