"""The nodes of a Ray cluster: the agent that runs a node's stages, its actor, and the way to it from the engine.

Everything that may crash or hang is a process of the node's own fork server. So deadlines are kept there, whatever the
network does, and nothing outlives the agent: the fork server ends with the process that it belongs to.

One actor a node holds the node's cores and GPUs. An actor of Ray is never restarted and no call is retried: the engine
decides what is done again. Ray reports a lost node late; the agents' signs of life (`cluster_machine.STALL_S`) tell of
one that hangs or cannot be reached.
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
"""Seconds that an agent may take to start. Where the resources it asks for are taken, Ray lets it wait for ever."""
REACH_S = 5.0
"""Seconds that connecting to a cluster's address may take."""
NODE_CANCEL_S = 5.0
"""Seconds that a cancelled call may take to end on its node."""
SETTLE_S = 3.0
"""Seconds to wait for cores and GPUs that are taken: Ray tells late of those that an ended run gave back."""
NOTICE_S = 5.0
"""Seconds after which an agent without messages answers all the same: so the engine knows that it lives."""


def versions_here() -> dict[str, str]:
    """Return the versions that all nodes of a run must share."""
    return {"Python": platform.python_version().rpartition(".")[0], **installed_versions()}


class NodeAgent(anyio.AsyncContextManagerMixin):
    """The stages of one node. Entering starts them, leaving kills every process."""

    def __init__(self, opening: Opening) -> None:
        o = opening
        self._machine = LocalMachine(
            o.workload, target=o.target, devices=o.devices, compile=o.compile, benchmark=o.benchmark, cores=o.cores
        )
        self._compilers: list[LocalCompileWorker] = []
        self._devices: dict[str, LocalDeviceWorker] = {}
        self._turns = defaultdict[int | str, anyio.Lock](anyio.Lock)
        """Held by each worker's job. A cancelled one may still be ending when the next arrives."""
        self._notices: list[str] = []
        self._noticed = anyio.Event()

    @asynccontextmanager
    async def __asynccontextmanager__(self) -> AsyncGenerator[NodeAgent, None]:
        async with self._machine.open(self._notice):
            yield self

    async def answer(self, what: str, *given: Any) -> Reply:
        """Call the method `what`. Cancelling it ends what that started. Raises nothing of its own."""
        try:
            answer = await getattr(self, what)(*given)
            reply = Reply(answer, await libraries_of(answer))
        except Exception as error:
            reply = Reply(error=sendable(error))
        return msgspec.structs.replace(reply, alive=tuple(name for name, one in self._devices.items() if one.alive))

    async def describe(self, seed: int) -> WorkloadSpec:
        return await self._machine.describe(seed=seed)

    async def discover(
        self, fingerprint: str, target: str = "", devices: tuple[str, ...] = ()
    ) -> tuple[Discovery, int]:
        """Find the node's devices, make its workers, and return the number of those that compile.

        `target`: the run's, with which only `devices` take part; empty: as in `Opening`. Workers that load work of
        another `fingerprint` are refused.
        """
        machine = self._machine
        machine.workers.loaded_as = fingerprint
        if target:
            machine.target_text, machine.device_names = target, devices
        await machine.discover()
        self._compilers = machine.compile_workers()
        self._devices = {device.info.id: device for device in machine.device_workers()}
        return machine.found, len(self._compilers)

    async def notices(self) -> list[str]:
        """Return messages for the user, once there are some; after `NOTICE_S` at the latest."""
        with anyio.move_on_after(NOTICE_S):
            await self._noticed.wait()
        notices, self._notices, self._noticed = self._notices, [], anyio.Event()
        return notices

    async def run(self, job: Job[Any], worker: int | str, libraries: Mapping[str, Library]) -> Any:
        """Have a compile worker, by number, or a device, by id, do `job`, which came with `libraries`."""
        job = await arrived(job, libraries, self._machine.run_dir)
        async with self._turns[worker]:
            if isinstance(worker, str):
                return await self._devices[worker].run(job)
            if isinstance(job, LowerJob):  # another node may build it, so that its code must be in the answer
                job = msgspec.structs.replace(job, anew=True)
            return await self._compilers[worker].run(job)

    def _notice(self, message: str) -> None:
        self._notices.append(message)
        self._noticed.set()


class Actor:
    """The Ray actor of a node: an agent, entered in a task of its own. Ray calls its methods."""

    def __init__(self) -> None:
        self._agent: NodeAgent
        self._ended: asyncio.Task[None]

    async def versions(self) -> dict[str, str]:
        """Return the versions of this node that must be those of the engine's program."""
        return versions_here()

    async def open(self, opening: Opening) -> None:
        """Start the agent. Raises where its fork server cannot be started."""
        opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._leave = asyncio.Event()
        self._ended = asyncio.create_task(self._serve(opening, opened))
        await opened

    async def _serve(self, opening: Opening, opened: asyncio.Future[None]) -> None:
        """Run the agent until the engine ends it. End this process if it fails or is left: the node is lost."""
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

    async def call(self, *asked: Any) -> Reply:
        """Have the agent answer. Ray cancels this task; the answer's own ends first then, and in order."""
        scope = anyio.CancelScope()

        async def answer() -> Reply:
            with scope:
                return await self._agent.answer(*asked)
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
    """The way to an actor."""

    def __init__(self, ray: Any, actor: Any, name: str, local: bool) -> None:
        self._ray, self.actor, self.name, self.local = ray, actor, name, local
        self._calls = set[anyio.Event]()
        """Calls under way. The event of one is set when it ends, or its agent is killed."""
        self.killing: threading.Thread | None = None

    async def ask(self, what: str, *given: Any) -> Reply:
        reference = self.actor.call.remote(what, *given)
        try:
            return cast(Reply, await self.answered(reference))
        except anyio.get_cancelled_exc_class():
            with anyio.move_on_after(NODE_CANCEL_S, shield=True), suppress(NodeLost):
                self._ray.cancel(reference)
                await self.answered(reference)
            raise

    async def answered(self, reference: Any) -> Any:
        """Wait for what a remote call returns, on whichever event loop. Raises `NodeLost`."""
        ended, loop = anyio.Event(), anyio.lowlevel.current_token().native_token
        soon: Callable[[Callable[[], None]], object]
        soon = loop.run_sync_soon if hasattr(loop, "run_sync_soon") else loop.call_soon_threadsafe  # type: ignore[attr-defined]

        def wake(_: object) -> None:
            """Runs in a thread of Ray's, which must not wait for the loop: the loop may wait for Ray."""
            with suppress(RuntimeError):  # the loop has ended, and nobody waits
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
            with suppress(Exception):  # it may be gone
                self._ray.kill(self.actor, no_restart=True)

        if self.killing is None:  # Ray may take seconds
            self.killing = threading.Thread(target=kill, name=f"kill {self.name}", daemon=True)
            self.killing.start()
            for ended in self._calls:
                ended.set()


@asynccontextmanager
async def ray_agents(opening: Opening, *, address: str) -> AsyncGenerator[tuple[list[Agent], list[str]], None]:
    """Join the cluster at `address`, and start an agent on every node that can take part.

    `address`: ``auto`` for the one that RAY_ADDRESS names or that runs here, or what `ray.init` takes, such as
    ``ray://HOST:10001``. Raises `UsageError` where Ray or the cluster is not there, and
    `MachineError` where no node can take part.
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
    """Leave the cluster once Ray got the kills of `agents`: a later `ray.kill` would join or start a cluster again."""
    until = time.monotonic() + NODE_CANCEL_S
    for agent in agents:
        if agent.killing is not None:
            agent.killing.join(max(0.0, until - time.monotonic()))
    ray.shutdown()


async def _close(agent: RayAgent) -> None:
    with anyio.move_on_after(NODE_CANCEL_S), suppress(NodeLost):
        await agent.answered(agent.actor.close.remote())


async def _started(ray: Any, node: Mapping[str, Any], opening: Opening, started: list[RayAgent]) -> RayAgent:
    """Start the agent of one node, and add it to `started`. Raises `NodeLost` with the reason where that fails."""
    claim = _claim(node, opening.compile.workers)
    if claim["num_cpus"] < 1:
        raise NodeLost("other programs hold all its cores, or Ray was given none")
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
            f"its agent did not start within {READY_S:g} s; is another program using {claim['num_cpus']:g} cores or "
            "its GPUs there? `ray status` tells"
        ) from error
    return agent


def _differs(there: Mapping[str, str]) -> str:
    """Return in what a node's versions differ from those here; empty where in nothing."""
    here = versions_here()
    pairs = {name: (here.get(name, "none"), there.get(name, "none")) for name in {**here, **there}}
    other = [f"{name} {theirs} and not {ours}" for name, (ours, theirs) in pairs.items() if ours != theirs]
    return f"it has {', '.join(other)}: install the same versions there" if other else ""


async def _settled(ray: Any, opening: Opening) -> list[dict[str, Any]]:
    """Return the nodes, once what the run wants of each is free, or `SETTLE_S` have passed."""
    nodes: list[dict[str, Any]] = []
    claim = partial(_claim, workers=opening.compile.workers)
    with anyio.move_on_after(SETTLE_S):
        while not nodes or any(claim(node) != claim({**node, "Free": node["Resources"]}) for node in nodes):
            nodes = await anyio.to_thread.run_sync(_nodes, ray, abandon_on_cancel=True)
            await anyio.sleep(0.1)
    return nodes


def _claim(node: Mapping[str, Any], workers: int | None) -> dict[str, Any]:
    """Return what an agent asks of Ray on `node`: all that is free, or a core for each of `workers` and each device."""
    cores, gpus = (int(node["Free"].get(name, 0)) for name in ("CPU", "GPU"))
    claim: dict[str, Any] = {"num_cpus": cores if workers is None else min(cores, workers + (gpus or 1))}
    return claim | ({"num_gpus": gpus} if gpus else {})


def _nodes(ray: Any) -> list[dict[str, Any]]:
    """Return the nodes that live, each with its name and what is free on it."""
    state = importlib.import_module("ray._private.state")  # Ray has no public name for it
    free = state.available_resources_per_node()
    nodes = [dict(node) for node in ray.nodes() if node["Alive"]]
    hosts = [node["NodeManagerHostname"] for node in nodes]
    for node in nodes:
        host = node["NodeManagerHostname"]
        node["Name"] = host if hosts.count(host) == 1 else f"{host}-{node['NodeID'][:6]}"
        node["Free"] = free.get(node["NodeID"], node["Resources"])
    return nodes


def _join(ray: Any, address: str) -> bool:
    """Connect this program to a cluster; tell whether it was not connected before."""
    if ray.is_initialized():
        return False
    _reach(address)
    worker = logging.getLogger("ray._private.worker")  # in a thread it warns that signals are not its own, as is wanted
    level = worker.level
    worker.setLevel(logging.ERROR)
    try:
        ray.init(address=address, log_to_driver=False, logging_level="error", configure_logging=False)
    except Exception as error:
        first_line = message_of(error).strip().partition("\n")[0]
        raise UsageError(
            f"cluster {address!r} cannot be joined: {first_line}. Start Ray (`ray start --head`), or give its address"
        ) from error
    finally:
        worker.setLevel(level)
    return True


def _reach(address: str) -> None:
    """Raise `UsageError` where nothing listens at ``HOST:PORT``: Ray itself would try for minutes."""
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if not colon or not port.isdigit():
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), REACH_S).close()
    except OSError as error:
        raise UsageError(
            f"cluster {address!r} cannot be joined: {host}:{port} cannot be reached ({error}). Start Ray there "
            "(`ray start --head`), or give the address that it printed"
        ) from error
