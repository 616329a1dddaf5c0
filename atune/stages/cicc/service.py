"""The compile service: a process with tilelang's CUDA headers parsed, which compiles device code for the workers.

It drives cicc's server, see `server`. It imports neither tilelang nor torch, so that it can parse the headers while
others still import.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import threading
from collections.abc import Sequence

import msgspec

from atune.stages.cicc.server import CiccError, Server, includes_for
from atune.stages.compile.device_source import Flavour, flags_config, flavour_of, for_nvcc, parts
from atune.stages.compile.lowering import Blob
from atune.stages.session.devices import visible_gpus
from atune.workers.processes.messages import ServiceReady

_servers: list[Server] = []
"""Those that this process has started. Each serves the runs whose sources fit it."""


def header(payload: bytes) -> bytes:
    """Entry point: msgpack of an arch → `ServiceReady`: parse the headers that most kernels include.

    That needs no kernel. Without an arch it uses that of this machine's first GPU. Headers that are parsed serve all
    runs.
    """
    arch = msgspec.msgpack.decode(payload, type=str)
    ready = ServiceReady(True)
    try:
        if not _servers:
            ready = ServiceReady(True, header_s=_parse(Flavour(arch or arch_of_this_machine())).header_s)
    except (CiccError, OSError) as error:
        ready = ServiceReady(False, str(error)[:500])
    return msgspec.msgpack.encode(ready)


def listen(payload: bytes) -> bytes:
    """Entry point: msgpack of (a lowered candidate's blob, arch, folder) → `ServiceReady`.

    Afterwards the run's `folder` has the link that workers connect to. If the parsed headers do not fit the candidate,
    the service parses those that its source includes.
    """
    data, arch, folder = msgspec.msgpack.decode(payload, type=tuple[bytes, str, str])
    blob = msgspec.msgpack.decode(data, type=Blob)
    ready, flavour = ServiceReady(True), flavour_of(arch, blob.pass_configs)
    try:
        if reason := for_nvcc({**blob.pass_configs, **flags_config(blob.flags)}):
            raise CiccError(reason)
        server = next((one for one in _servers if one.fits(flavour, blob.source)), None)
        if server is None:
            server = _parse(flavour, *_headers(blob.source))
            ready = ServiceReady(True, header_s=server.header_s)
        server.link(folder)
    except (CiccError, OSError) as error:
        return msgspec.msgpack.encode(ServiceReady(False, str(error)[:500]))
    return msgspec.msgpack.encode(ready)


def _headers(source: str) -> tuple[Sequence[str], str]:
    """Return the includes of `source`, and its text before them; none if it has another form than tilelang's."""
    try:
        first, includes, _ = parts(source)
    except ValueError:
        return (), ""
    return includes, first


def _end_with(server: Server) -> None:
    """Wait for cicc's end, and then end this process, which is useless without it."""
    print(f"cicc ended: {server.wait()}", file=sys.stderr, flush=True)
    os._exit(1)


def _parse(flavour: Flavour, includes: Sequence[str] = (), first: str = "") -> Server:
    """Parse `first`, `includes`, and the headers that most kernels include.

    Raises `CiccError` or `OSError` if cicc cannot be driven.
    """
    folder = tempfile.mkdtemp(prefix="cicc-")
    try:
        server = Server(flavour, (*includes, *includes_for(flavour.arch)), folder, first)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    threading.Thread(target=_end_with, args=(server,), daemon=True).start()
    _servers.append(server)
    return server


def arch_of_this_machine() -> str:
    gpus = visible_gpus()
    if not gpus:
        raise CiccError("there is no GPU")
    return gpus[0].arch
