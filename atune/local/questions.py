"""Questions that a worker answers by loading a workload's file, without compiling or measuring."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager

import msgspec

from atune.local.entry_points import DISCOVER, LOCATE, SURVEY_SPACE
from atune.local.fork_servers import taken
from atune.local.workers import Workers, process_folders
from atune.model.settings import BenchmarkSettings, CompileSettings
from atune.processes.messages import Discovery
from atune.processes.pool import ForkServer
from atune.system.folders import run_folder
from atune.workload.kernel_site import KernelSite, Sought
from atune.workload.space_survey import SpaceSurvey
from atune.workload.workload import FileRef, WorkloadRef


@asynccontextmanager
async def asking(workload: WorkloadRef) -> AsyncGenerator[Workers, None]:
    """Start the fork server, or take the parked one, and yield its workers. Kill them on leaving."""
    async with asking_in_folder(workload) as (workers, _):
        yield workers


@asynccontextmanager
async def asking_in_folder(workload: WorkloadRef) -> AsyncGenerator[tuple[Workers, str], None]:
    """Do what `asking` does, and also yield the folder that the workers may write to. Remove it on leaving."""
    with run_folder() as run_dir:
        process, park = taken()
        async with ForkServer(process=process, park=park) as server:
            workers = Workers(workload)
            workers.attach(server, process_folders(run_dir))
            yield workers, run_dir


async def survey_space(ref: FileRef) -> SpaceSurvey:
    """Return the counts of a workload's space, from a worker. Raises `WorkloadError` and `SpaceError`."""
    async with asking(ref) as workers:
        reply = await workers.ask_once("survey", SURVEY_SPACE, msgspec.msgpack.encode(ref))
    return msgspec.msgpack.decode(reply, type=SpaceSurvey)


async def discover(
    ref: FileRef, target: str, devices: Sequence[str], compile: CompileSettings, benchmark: BenchmarkSettings
) -> Discovery:
    """Return the target and the devices that a run would have. Raises `TargetError`."""
    question = (target, tuple(devices), benchmark.mixed_devices, compile)
    async with asking(ref) as workers:
        reply = await workers.ask_once("discover", DISCOVER, msgspec.msgpack.encode(question))
    return msgspec.msgpack.decode(reply, type=Discovery)


async def locate_kernel(sought: Sought) -> KernelSite:
    """Return the place of a kernel's definition, from a worker that runs its file. Raises `WorkloadError`."""
    async with asking(sought.ref) as workers:
        reply = await workers.ask_once("locate", LOCATE, msgspec.msgpack.encode(sought))
    return msgspec.msgpack.decode(reply, type=KernelSite)
