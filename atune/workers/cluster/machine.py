"""The stages on many machines, behind the engine's own interface: decisions stay with the one engine."""

from __future__ import annotations

import shutil
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress

import anyio
import msgspec

from atune.engine.interfaces import CompileHints, ignored
from atune.engine.run_state import background
from atune.errors import TargetError
from atune.model.device import DeviceInfo, Target
from atune.model.folders import run_folder
from atune.model.settings import BenchmarkSettings, CompileSettings
from atune.version import installed_versions
from atune.workers.cluster.nodes import (
    Agent,
    ClusterCompileWorker,
    ClusterDeviceWorker,
    Node,
    NodeLost,
    Opening,
    none_left,
)
from atune.workers.local.machine import PLAIN, are_few, check_discovery, compile_hints
from atune.workers.processes.messages import Discovery
from atune.workload.pickling import WorkloadRef
from atune.workload.workload import WorkloadSpec

NO_NVCC = "it has no such device, and no nvcc to compile with"


def shares(found: Mapping[str, Discovery]) -> tuple[Target, dict[str, tuple[str, ...]]]:
    """Return the run's target, and the ids of the devices that each node, by name, measures with.

    A node without ids only compiles. GPUs count before CPUs. Raises `TargetError` where devices are of several models.
    """
    kind = "cuda" if any(one.target.kind == "cuda" for one in found.values()) else "c"
    pool = {name: one for name, one in found.items() if one.target.kind == kind}
    models = dict.fromkeys((device.name, name) for name, one in pool.items() for device in one.devices)
    targets = {one.target for one in pool.values() if one.devices or not models}
    if len({model for model, _ in models}) > 1:
        raise TargetError(
            "the cluster has devices of several models, whose timings do not compare: "
            f"{', '.join(f'{model} on {node}' for model, node in sorted(models))}. Start a Ray cluster of each model's "
            "nodes"
        )
    ids = {name: tuple(device.id for device in one.devices) for name, one in pool.items()}
    return min(targets, key=str), {name: ids.get(name, ()) for name in found}


Connect = Callable[[Opening], AbstractAsyncContextManager[tuple[Sequence[Agent], Sequence[str]]]]
"""Starts an agent on every node; gives the agents, and why nodes were left out. Leaving ends the agents."""


class ClusterMachine:
    """Compile workers and device workers of one run, on the nodes that `connect` finds.

    The parameters are those of `LocalMachine`. `CompileSettings.workers` and `devices` hold for each node.
    """

    def __init__(
        self,
        connect: Connect,
        workload: WorkloadRef,
        *,
        spec: WorkloadSpec | None = None,
        target: str = "auto",
        devices: Sequence[str] = ("all",),
        compile: CompileSettings | None = None,
        benchmark: BenchmarkSettings | None = None,
    ) -> None:
        self._connect, self.spec = connect, spec
        self.compile, self.benchmark = compile or CompileSettings(), benchmark or BenchmarkSettings()
        self._opening = Opening(workload, target, tuple(devices), self.compile, self.benchmark, cores=0)
        self.nodes: list[Node] = []
        self._warn: Callable[[str], None] = ignored
        self._found: Discovery
        self._fingerprint = ""
        """That of the workload, as a node described it."""
        self._describing = anyio.Lock()
        self._wake: Callable[[], None] = ignored

    @asynccontextmanager
    async def open(
        self, warn: Callable[[str], None] = ignored, wake: Callable[[], None] = ignored
    ) -> AsyncGenerator[None, None]:
        """Start an agent on every node; end them, and with them every process, on leaving."""
        self._warn, self._wake = warn, wake
        with run_folder() as run_dir:
            async with self._connect(self._opening) as (agents, left_out), background() as tasks:
                self.nodes = [Node(agent, run_dir, self._lose) for agent in agents]
                for why in left_out:
                    warn(why)
                for node in self.nodes:
                    tasks.start_soon(node.watch, lambda message: self._warn(message))
                try:
                    yield
                finally:
                    self._warn = ignored
            shutil.rmtree(run_dir, ignore_errors=True)

    async def describe(self, *, seed: int = 0) -> WorkloadSpec:
        async with self._describing:  # `discover` asks at the same time
            while not self._fingerprint:
                if not self._living:
                    raise none_left(node.lost for node in self.nodes)
                with suppress(NodeLost):  # another node describes it then
                    spec: WorkloadSpec = await self._living[0].ask("describe", seed)
                    self._fingerprint = spec.fingerprint
                    if self.spec is None or not self.spec.configs:
                        self.spec = spec
        assert self.spec is not None
        return self.spec

    async def discover(self) -> tuple[Target, list[DeviceInfo]]:
        """Ask every node for its devices, and choose those of the run.

        A node without the target's devices only compiles. Raises `TargetError`: see `shares`.
        """
        await self.describe()
        without: dict[str, TargetError] = {}

        async def ask(node: Node) -> None:
            try:
                await node.discover(self._fingerprint)
            except TargetError as error:
                without[node.name] = error

        await self._everywhere(ask)
        await self._share_out(without)
        found = [node.found for node in self._living]
        no_cicc = next((one.no_cicc for one in found if one.no_cicc), "")
        devices = tuple(node.named(info) for node in self._living for info in node.found.devices)
        self._found = msgspec.structs.replace(found[0], devices=devices, no_cicc=no_cicc)
        check_discovery(self._found, self.benchmark)
        for remark in filter(None, (self._found.untested, self._found.fallback)):
            self._warn(remark)
        return self._found.target, list(devices)

    async def _share_out(self, without: Mapping[str, TargetError]) -> None:
        """Tell each node which of its devices the run measures with. Leave out those that cannot compile for it.

        `without`: why nodes do not have the target's devices. Raises the first one's error if none has any.
        """
        found = {node.name: node.found for node in self._living if node.name not in without}
        if not found:
            raise without[min(without)]
        target, ids_by_node = shares(found)

        async def share_out(node: Node) -> None:
            ids, why = ids_by_node.get(node.name, ()), without.get(node.name)
            if why and target.kind != "cuda":
                self._leave_out(node, str(why))
                return
            if not why and (node.found.target, tuple(one.id for one in node.found.devices)) == (target, ids):
                return
            await node.discover(self._fingerprint, target.arch or target.kind, ids)
            if not node.found.nvcc:
                self._leave_out(node, NO_NVCC)
            elif why:
                self._warn(f"node {node.name} only compiles: {why}")

        await self._everywhere(share_out)

    def _leave_out(self, node: Node, why: str) -> None:
        self.nodes.remove(node)
        node.lost = f"node {node.name} is left out: {why}"
        node.agent.kill()
        self._warn(node.lost)

    async def prepare(self, candidates: int) -> None:
        """Have the nodes make their workers, which use cicc if all of them can."""
        few = are_few(candidates, sum(node.compilers for node in self._living))
        await self._everywhere(lambda node: node.ask("plan", PLAIN if few else self._found.no_cicc))

    def compile_workers(self) -> list[ClusterCompileWorker]:
        """Return one worker for each of the nodes'. Successive ones are of different nodes."""
        places = [(node, number) for node in self._living for number in range(node.compilers)]
        places.sort(key=lambda place: place[1])
        return [ClusterCompileWorker(index, places) for index in range(len(places))]

    def device_workers(self) -> list[ClusterDeviceWorker]:
        return [ClusterDeviceWorker(node, info) for node in self._living for info in node.found.devices]

    def versions(self) -> dict[str, str]:
        return installed_versions()

    def hints(self, measuring: int) -> CompileHints:
        """Return the hints; each node keeps cores free by itself."""
        return compile_hints(self._found)

    @property
    def _living(self) -> list[Node]:
        return [node for node in self.nodes if not node.lost]

    def _lose(self, node: Node) -> None:
        """Go on without a node, and say so in one line."""
        left = len(self._living)
        rest = f"{left} of {len(self.nodes)} nodes are left; what it had under way is done again there"
        self._warn(f"{node.lost}. {rest if left else 'No node is left'}")
        self._wake()

    async def _everywhere(self, ask: Callable[[Node], Awaitable[None]]) -> None:
        """Ask all nodes at once; those that are lost meanwhile are left out. Raises the first node's mistake."""
        errors: dict[str, Exception] = {}

        async def one(node: Node) -> None:
            try:
                await ask(node)
            except NodeLost:
                pass
            except Exception as error:
                errors[node.name] = error

        async with anyio.create_task_group() as tasks:
            for node in self._living:
                tasks.start_soon(one, node)
        if errors:
            raise errors[min(errors)]
        if not self._living:
            raise none_left(node.lost for node in self.nodes)
