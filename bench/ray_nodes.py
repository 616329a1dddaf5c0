"""Ray nodes on this machine, and their processes.

Two nodes `apart` each have a network namespace, and a pair of virtual interfaces joins these. A network that stalls can
therefore be real: packets are dropped, and no connection is closed. `in_own_network` must be called first; it needs the
programs `unshare`, `nsenter` and `ip`. Other nodes share the loopback interface.
"""

from __future__ import annotations

import logging
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from common import ROOT

from atune.workers import server_main

INSIDE, MARK = "ATUNE_BENCH_NETWORK", "ATUNE_BENCH_NODE"
IPS = "10.77.0.1", "10.77.0.2"
PROGRAM = server_main.__file__
"""The program of fork servers and of the workers that they fork."""
PORT = 6379
NOWHERE = "02:00:00:00:00:99"
"""A hardware address that no interface has."""


def in_own_network() -> None:
    """Start this program again in its own network namespace, unless that is done already."""
    if INSIDE not in os.environ:
        own = ["unshare", "--net"] if os.geteuid() == 0 else ["unshare", "--net", "--map-root-user"]
        os.execvpe(own[0], [*own, sys.executable, *sys.argv], {**os.environ, INSIDE: "1"})


def run(*command: str) -> None:
    subprocess.run(command, check=True)


class Spec(NamedTuple):
    """The cores to which a node is bound, and its GPUs, as in CUDA_VISIBLE_DEVICES."""

    cores: tuple[int, ...]
    gpus: str = ""


class Nodes:
    """The nodes of a cluster. This program belongs to the first node, whose `address` is the cluster's."""

    def __init__(self, specs: Sequence[Spec], apart: bool) -> None:
        self._specs, self._apart = specs, apart
        self._ips = IPS if apart else ("127.0.0.1",) * len(specs)
        self.address = f"{self._ips[0]}:{PORT if apart else free_port()}"
        self._enter: list[str] = []
        self._mark = uuid.uuid4().hex
        self._programs: list[subprocess.Popen[bytes]] = []
        self._folder = tempfile.mkdtemp(prefix="at-", dir="/tmp")
        os.environ["RAY_AUTH_MODE"] = "token"
        os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))  # Ray reads it once
        os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_process_group_cleanup_enabled": "1"}
        os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])

    def start(self) -> None:
        """Start the nodes. Raises `RuntimeError` if that takes over a minute."""
        if self._apart:
            self._join_networks()
        port = self.address.rpartition(":")[2]
        self._ray(0, ["--head", f"--port={port}", "--include-dashboard=false", f"--temp-dir={self._folder}"])
        self.wait(self._listening, "the head")
        for number in range(1, len(self._specs)):
            self._ray(number, [f"--address={self.address}"])

    def _join_networks(self) -> None:
        other = self._program(["unshare", "--net", "sleep", "infinity"], "holder")
        self.wait(lambda: os.readlink(f"/proc/{other.pid}/ns/net") != os.readlink("/proc/self/ns/net"), "a network")
        self._enter = ["nsenter", "--net", "-t", str(other.pid)]
        run("ip", "link", "set", "lo", "up")
        run("ip", "link", "add", "near", "type", "veth", "peer", "name", "far", "netns", str(other.pid))
        for name, ip, enter in (("near", IPS[0], []), ("far", IPS[1], self._enter)):
            run(*enter, "ip", "addr", "add", f"{ip}/24", "dev", name)
            run(*enter, "ip", "link", "set", name, "up")
        run(*self._enter, "ip", "link", "set", "lo", "up")

    def _ray(self, number: int, options: list[str]) -> None:
        cores, gpus = self._specs[number]
        bound = ["taskset", "-c", ",".join(map(str, cores))]
        ray = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block"]
        own = [f"--node-ip-address={self._ips[number]}", f"--num-cpus={len(cores)}"]
        own += [f"--num-gpus={gpus.count(',') + 1 if gpus else 0}"]
        env = {"CUDA_VISIBLE_DEVICES": gpus} if gpus else {}
        self._program([*(self._enter if number else []), *bound, *ray, *own, *options], str(number), env)

    def _program(
        self, command: list[str], part: str, env: Mapping[str, str] = MappingProxyType({})
    ) -> subprocess.Popen[bytes]:
        own = {**os.environ, **env, MARK: f"{self._mark}-{part}"}
        with (Path(self._folder) / f"{part}.log").open("wb") as log:
            program = subprocess.Popen(command, env=own, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT)
        self._programs.append(program)
        return program

    def _listening(self) -> bool:
        host, _, port = self.address.rpartition(":")
        with suppress(OSError):
            socket.create_connection((host, int(port)), 1.0).close()
            return any("raylet" in line for line in self.processes(0).values())
        return False

    @staticmethod
    def wait(ready: Callable[[], bool], what: str, within_s: float = 60.0) -> None:
        begun = time.monotonic()
        while not ready():
            if time.monotonic() - begun > within_s:
                raise RuntimeError(f"{what} is not ready after {within_s:g} s")
            time.sleep(0.1)

    def processes(self, number: int | str = "") -> dict[int, str]:
        """Return the command lines of a node's live processes, by pid; of all nodes by default."""
        lines = {}
        for entry in Path("/proc").iterdir():
            with suppress(OSError):
                if (
                    entry.name.isdigit()
                    and f"{MARK}={self._mark}-{number}".encode() in (entry / "environ").read_bytes()
                ):
                    command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                    lines[int(entry.name)] = command.strip() or (entry / "comm").read_text().strip()
        return lines

    def agents(self, number: int | str = "") -> list[int]:
        """Return the pids of agents."""
        return [pid for pid, line in self.processes(number).items() if line.startswith("ray::Actor")]

    def workers(self, number: int | str = "") -> list[int]:
        """Return the pids of processes that agents have started: fork servers, workers and compilers."""
        return [pid for pid, line in self.processes(number).items() if PROGRAM in line or compiles(line)]

    def device_process(self, number: int) -> int:
        """Return the pid of the process that has loaded the most libraries of candidates."""

        def loaded(pid: int) -> int:
            with suppress(OSError):
                return len(re.findall(r"/run-\w+/(?:artifacts|received)/", Path(f"/proc/{pid}/maps").read_text()))
            return 0

        return max(self.workers(number), key=loaded)

    def cut(self) -> None:
        """Make the network drop all packets."""
        for name, ip, enter in (("near", IPS[1], []), ("far", IPS[0], self._enter)):
            run(*enter, "ip", "neigh", "replace", ip, "lladdr", NOWHERE, "dev", name, "nud", "permanent")

    def mend(self) -> None:
        """Make the network work again."""
        for name, ip, enter in (("near", IPS[1], []), ("far", IPS[0], self._enter)):
            run(*enter, "ip", "neigh", "del", ip, "dev", name)

    def send(self, number: int | str, what: signal.Signals) -> None:
        """Send a signal to all processes of a node."""
        for pid in self.processes(number):
            with suppress(ProcessLookupError):
                os.kill(pid, what)

    def stop(self) -> None:
        """Kill all nodes, and remove their folder."""
        self.send("", signal.SIGKILL)
        for program in self._programs:
            program.wait()
        if self._apart:
            subprocess.run(["ip", "link", "del", "near"], check=False, stderr=subprocess.DEVNULL)
        shutil.rmtree(self._folder, ignore_errors=True)


def compiles(line: str) -> bool:
    """Tell whether a command line runs a compiler, or a program that a compiler calls."""
    return Path(line.partition(" ")[0]).name in {"g++", "cc1plus", "as", "ld", "collect2", "nvcc", "cicc", "ptxas"}


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


@contextmanager
def ray_nodes(*specs: Spec, apart: bool = False) -> Iterator[Nodes]:
    """Start nodes, and connect this program to them."""
    nodes = Nodes(specs, apart)
    try:
        nodes.start()
        import ray

        own_ip = nodes.address.rpartition(":")[0]
        ray.init(address=nodes.address, log_to_driver=False, logging_level=logging.ERROR, _node_ip_address=own_ip)
        try:
            nodes.wait(lambda: sum(node["Alive"] for node in ray.nodes()) == len(specs), "the last node")
            yield nodes
        finally:
            ray.shutdown()
    finally:
        nodes.stop()
