"""The nodes of a Ray cluster: the agent that runs a node's workers, the agent's Ray actor, and the connection.

All code that may crash or hang runs in processes that the node's own fork server forks. So a node enforces deadlines
even while the network is down. No process outlives the agent, because the fork server ends with the agent's process.

One actor for each node holds the node's cores and GPUs. Ray restarts no actor and retries no call, because the engine
decides what to repeat. Ray reports a lost node late, so the engine counts a node as lost if the node's agent is silent
for `cluster_machine.STALL_S` seconds.
"""

from __future__ import annotations

import asyncio
import importlib
import logging
import os
import platform
import socket
import threading
import time
from collections import defaultdict
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any, cast

import anyio
import anyio.lowlevel
import anyio.to_thread
import msgspec

from atune.engine.run_state import opened_aside
from atune.errors import MachineError, UsageError, message_of
from atune.model.jobs import Job, LowerJob
from atune.model.requirements import optional
from atune.version import installed_versions
from atune.workers.cluster.cluster_machine import (
    Agent,
    Library,
    NodeLost,
    Opening,
    Reply,
    arrived,
    libraries_of,
    sendable,
)
from atune.workers.compile_worker import LocalCompileWorker
from atune.workers.device_worker import LocalDeviceWorker
from atune.workers.local_machine import LocalMachine
from atune.workers.messages import Discovery
from atune.workload.workload import WorkloadSpec

READY_S = 60.0
"""Seconds that an agent may take to start. Without a limit, Ray would wait forever for cores and GPUs in use."""
REACH_S = 5.0
"""Seconds that connecting to a cluster's address may take."""
NODE_CANCEL_S = 5.0
"""Seconds that a cancelled call may take to end on its node."""
SETTLE_S = 3.0
"""Seconds to wait for busy cores and GPUs, because Ray reports late that an ended run has freed its cores and GPUs."""
NOTICE_S = 5.0
"""Seconds after which an agent answers even if it has no messages, so that the engine knows that the agent is alive."""


def versions_here() -> dict[str, str]:
    """Return the versions on this machine that must be the same on all nodes of a run."""
    return {"Python": platform.python_version().rpartition(".")[0], **installed_versions()}


class NodeAgent(anyio.AsyncContextManagerMixin):
    """The workers of a node. Entering the context starts a fork server. Leaving the context kills every worker."""

    def __init__(self, opening: Opening) -> None:
        o = opening
        self._machine = LocalMachine(
            o.workload, target=o.target, devices=o.devices, compile=o.compile, benchmark=o.benchmark, cores=o.cores
        )
        self._compilers: list[LocalCompileWorker] = []
        self._devices: dict[str, LocalDeviceWorker] = {}
        self._turns = defaultdict[int | str, anyio.Lock](anyio.Lock)
        """A lock per worker, held by the current job. A cancelled job may still be ending when the next job arrives."""
        self._notices: list[str] = []
        self._noticed = anyio.Event()

    @asynccontextmanager
    async def __asynccontextmanager__(self) -> AsyncGenerator[NodeAgent, None]:
        async with self._machine.open(self._notice):
            yield self

    async def answer(self, method: str, *arguments: Any) -> Reply:
        """Call `method`, and reply with the method's answer or error. Cancelling the call also cancels the method."""
        try:
            answer = await getattr(self, method)(*arguments)
            reply = Reply(answer, await libraries_of(answer))
        except Exception as error:
            reply = Reply(error=sendable(error))
        return msgspec.structs.replace(reply, alive=tuple(name for name, dev in self._devices.items() if dev.alive))

    async def describe(self, seed: int) -> WorkloadSpec:
        return await self._machine.describe(seed=seed)

    async def discover(
        self, fingerprint: str, target: str = "", devices: tuple[str, ...] = ()
    ) -> tuple[Discovery, int]:
        """Find the node's devices and create its workers. Return the discovery and the number of compile workers.

        `target`: the target of the run. If `target` is empty, the target and the devices of the `Opening` apply;
        otherwise `devices` apply. Refuse workers that load a workload with another `fingerprint`.
        """
        machine = self._machine
        machine.workers.loaded_as = fingerprint
        if target:
            machine.target_text, machine.device_names = target, devices
        await machine.discover()
        self._compilers = machine.compile_workers()
        self._devices = {device.info.id: device for device in machine.device_workers()}
        return machine.discovery, len(self._compilers)

    async def notices(self) -> list[str]:
        """Return the messages for the user, after waiting at most `NOTICE_S` seconds for the first message."""
        with anyio.move_on_after(NOTICE_S):
            await self._noticed.wait()
        notices, self._notices, self._noticed = self._notices, [], anyio.Event()
        return notices

    async def run(self, job: Job[Any], worker: int | str, libraries: Mapping[str, Library]) -> Any:
        """Have `worker` do `job`, which came with `libraries`. `worker`: a compile worker's number or a device's id."""
        job = await arrived(job, libraries, self._machine.run_dir)
        async with self._turns[worker]:
            if isinstance(worker, str):
                return await self._devices[worker].run(job)
            if isinstance(job, LowerJob):  # another node may build the kernel, so the answer must have its code
                job = msgspec.structs.replace(job, anew=True)
            return await self._compilers[worker].run(job)

    def _notice(self, message: str) -> None:
        self._notices.append(message)
        self._noticed.set()


class Actor:
    """The Ray actor of a node, whose methods Ray calls. The actor runs the node's agent in a separate task."""

    def __init__(self) -> None:
        self._agent: NodeAgent
        self._ended: asyncio.Task[None]

    async def versions(self) -> dict[str, str]:
        """Return the versions on this node, which must equal the versions in the engine's program."""
        return versions_here()

    async def open(self, opening: Opening) -> None:
        """Start the agent. If the agent's fork server cannot be started, raise the error from starting it."""
        opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._leave = asyncio.Event()
        self._ended = asyncio.create_task(self._serve(opening, opened))
        await opened

    async def _serve(self, opening: Opening, opened: asyncio.Future[None]) -> None:
        """Run the agent until the engine ends it. If the agent fails or is cancelled, end this process."""
        try:
            async with NodeAgent(opening) as self._agent:
                opened.set_result(None)
                await self._leave.wait()
        except BaseException as error:
            if not opened.done():
                opened.set_exception(error)
            elif self._leave.is_set():
                raise
            else:
                os._exit(1)

    async def call(self, *arguments: Any) -> Reply:
        """Have the agent answer a call. If Ray cancels this task, first wait until the agent has ended the call."""
        scope = anyio.CancelScope()

        async def answer() -> Reply:
            with scope:
                return await self._agent.answer(*arguments)
            return Reply()

        task = asyncio.create_task(answer())
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            scope.cancel()
            await task
            raise

    async def close(self) -> None:
        self._leave.set()
        await self._ended


class RayAgent:
    """The connection to an actor."""

    def __init__(self, ray: Any, actor: Any, name: str, local: bool) -> None:
        self._ray, self.actor, self.name, self.local = ray, actor, name, local
        self._calls = set[anyio.Event]()
        """An event for each running call. The event is set when the call ends or the agent is killed."""
        self.killing: threading.Thread | None = None

    async def ask(self, method: str, *arguments: Any) -> Reply:
        reference = self.actor.call.remote(method, *arguments)
        try:
            return cast(Reply, await self.answered(reference))
        except anyio.get_cancelled_exc_class():
            with anyio.move_on_after(NODE_CANCEL_S, shield=True), suppress(NodeLost):
                self._ray.cancel(reference)
                await self.answered(reference)
            raise

    async def answered(self, reference: Any) -> Any:
        """Wait, on any event loop, for the result of a remote call. Raises `NodeLost`."""
        ended, loop = anyio.Event(), anyio.lowlevel.current_token().native_token
        soon: Callable[[Callable[[], None]], object]
        soon = loop.run_sync_soon if hasattr(loop, "run_sync_soon") else loop.call_soon_threadsafe  # type: ignore[attr-defined]

        def wake(_: object) -> None:
            """Set `ended`. Ray calls this in a thread that must not wait for the loop: the loop may wait for Ray."""
            with suppress(RuntimeError):  # the loop has ended, and no task waits
                soon(ended.set)

        future = reference.future()
        future.add_done_callback(wake)
        self._calls.add(ended)
        try:
            await ended.wait()
        finally:
            self._calls.discard(ended)
        if not future.done():
            raise NodeLost("its agent was killed")
        try:
            return future.result()
        except self._ray.exceptions.RayError as error:
            raise NodeLost(message_of(error).strip().partition("\n")[0]) from error

    def kill(self) -> None:
        def kill() -> None:
            with suppress(Exception):  # the actor may be gone
                self._ray.kill(self.actor, no_restart=True)

        if self.killing is None:  # in a thread, because Ray may take seconds
            self.killing = threading.Thread(target=kill, name=f"kill {self.name}", daemon=True)
            self.killing.start()
            for ended in self._calls:
                ended.set()


@asynccontextmanager
async def ray_agents(opening: Opening, *, address: str) -> AsyncGenerator[tuple[list[Agent], list[str]], None]:
    """Join the cluster at `address`, start an agent on every node that can take part, and yield the agents.

    Also yields the reasons why the other nodes are left out. `address`: either an address for `ray.init`, such as
    ``ray://HOST:10001``, or ``auto`` for the cluster that RAY_ADDRESS names or that runs on this machine. Raises
    `UsageError` if Ray or the cluster cannot be found, and `MachineError` if no node can take part.
    """
    ray = optional("a cluster", "ray")
    joined = await opened_aside(partial(_join, ray, address), lambda joined: joined and ray.shutdown())
    started, agents, left_out = list[RayAgent](), list[RayAgent](), list[str]()

    async def start(node: Mapping[str, Any]) -> None:
        try:
            agents.append(await _started(ray, node, opening, started))
        except NodeLost as error:
            left_out.append(f"node {node['Name']} is left out: {error}")

    try:
        nodes = await _settled(ray, opening)
        async with anyio.create_task_group() as tasks:
            for node in nodes:
                tasks.start_soon(start, node)
        if not agents:
            raise MachineError(f"no node of the Ray cluster can take part: {'; '.join(left_out) or 'it has none'}")
        agents.sort(key=lambda agent: (not agent.local, agent.name))
        yield list(agents), left_out
        async with anyio.create_task_group() as tasks:
            for agent in agents:
                tasks.start_soon(_close, agent)
    finally:
        for agent in started:
            agent.kill()
        if joined:
            with anyio.CancelScope(shield=True):
                await anyio.to_thread.run_sync(_leave, ray, started)


def _leave(ray: Any, agents: Sequence[RayAgent]) -> None:
    """Leave the cluster after Ray has killed `agents`, because a later `ray.kill` would join or start a cluster."""
    until = time.monotonic() + NODE_CANCEL_S
    for agent in agents:
        if agent.killing is not None:
            agent.killing.join(max(0.0, until - time.monotonic()))
    ray.shutdown()


async def _close(agent: RayAgent) -> None:
    with anyio.move_on_after(NODE_CANCEL_S), suppress(NodeLost):
        await agent.answered(agent.actor.close.remote())


async def _started(ray: Any, node: Mapping[str, Any], opening: Opening, started: list[RayAgent]) -> RayAgent:
    """Start the agent of a node, and append the agent to `started`. If that fails, raise `NodeLost` with the reason."""
    claim = _claim(node, opening.compile.workers)
    if claim["num_cpus"] < 1:
        raise NodeLost("other programs of the Ray cluster use all its cores, or Ray was started there without cores")
    strategy = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
    remote = ray.remote(Actor).options(
        **claim, max_restarts=0, max_task_retries=0, max_concurrency=100_000, scheduling_strategy=strategy
    )
    agent = RayAgent(ray, remote.remote(), node["Name"], node["NodeManagerAddress"] == ray.util.get_node_ip_address())
    started.append(agent)
    try:
        with anyio.fail_after(READY_S):
            if why := _differs(await agent.answered(agent.actor.versions.remote())):
                raise NodeLost(why)
            own = msgspec.structs.replace(opening, cores=int(claim["num_cpus"]))
            await agent.answered(agent.actor.open.remote(own))
    except (TimeoutError, NodeLost) as error:
        agent.kill()
        if isinstance(error, NodeLost):
            raise
        raise NodeLost(
            f"its agent did not start within {READY_S:g} s. Another program may be using its GPUs or some of the "
            f"{claim['num_cpus']:g} cores that the agent needs: see `ray status`"
        ) from error
    return agent


def _differs(there: Mapping[str, str]) -> str:
    """Return a message with the differences between a node's versions and this machine's; empty if none differ."""
    here = versions_here()
    pairs = {name: (here.get(name, "none"), there.get(name, "none")) for name in {**here, **there}}
    differences = [f"{name} {theirs} and not {ours}" for name, (ours, theirs) in pairs.items() if ours != theirs]
    return f"it has {', '.join(differences)}: install the same versions there" if differences else ""


async def _settled(ray: Any, opening: Opening) -> list[dict[str, Any]]:
    """Return the nodes when all resources that the run wants are free, but at the latest after `SETTLE_S` seconds."""
    nodes: list[dict[str, Any]] = []
    claim = partial(_claim, workers=opening.compile.workers)
    with anyio.move_on_after(SETTLE_S):
        while not nodes or any(claim(node) != claim({**node, "Free": node["Resources"]}) for node in nodes):
            nodes = await anyio.to_thread.run_sync(_nodes, ray, abandon_on_cancel=True)
            await anyio.sleep(0.1)
    return nodes


def _claim(node: Mapping[str, Any], workers: int | None) -> dict[str, Any]:
    """Return the resources of `node` to request for an agent: all free GPUs, and one core for each GPU and each worker.
    If `workers` is None, request all free cores."""
    cores, gpus = (int(node["Free"].get(name, 0)) for name in ("CPU", "GPU"))
    claim: dict[str, Any] = {"num_cpus": cores if workers is None else min(cores, workers + (gpus or 1))}
    return claim | ({"num_gpus": gpus} if gpus else {})


def _nodes(ray: Any) -> list[dict[str, Any]]:
    """Return the living nodes, each with its name as `Name` and its free resources as `Free`."""
    state = importlib.import_module("ray._private.state")  # Ray has no public function for this
    free = state.available_resources_per_node()
    nodes = [dict(node) for node in ray.nodes() if node["Alive"]]
    hosts = [node["NodeManagerHostname"] for node in nodes]
    for node in nodes:
        host = node["NodeManagerHostname"]
        node["Name"] = host if hosts.count(host) == 1 else f"{host}-{node['NodeID'][:6]}"
        node["Free"] = free.get(node["NodeID"], node["Resources"])
    return nodes


def _join(ray: Any, address: str) -> bool:
    """Connect this program to a cluster. Returns False if the program was already connected."""
    if ray.is_initialized():
        return False
    _reach(address)
    worker = logging.getLogger("ray._private.worker")  # which warns, rightly, that Ray handles no signals in a thread
    level = worker.level
    worker.setLevel(logging.ERROR)
    try:
        ray.init(address=address, log_to_driver=False, logging_level="error", configure_logging=False)
    except Exception as error:
        first_line = message_of(error).strip().partition("\n")[0]
        raise UsageError(
            f"atune cannot join cluster {address!r}: {first_line}. Start Ray (`ray start --head`), or give its address"
        ) from error
    finally:
        worker.setLevel(level)
    return True


def _reach(address: str) -> None:
    """If no server listens at ``HOST:PORT``, raise `UsageError` now, because Ray itself would retry for minutes."""
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if not colon or not port.isdigit():
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), REACH_S).close()
    except OSError as error:
        raise UsageError(
            f"atune cannot join cluster {address!r}, because {host}:{port} cannot be reached ({error}). Start Ray "
            "there (`ray start --head`), or give the address that it printed"
        ) from error
