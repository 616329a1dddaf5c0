"""The compile service: a process that has parsed tilelang's CUDA headers, and compiles device code for the workers.

It is cicc's server where nvcc is as that knows it, else NVRTC with a precompiled header. This process imports neither
tilelang nor torch: it can parse the headers while others still import.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Sequence

import msgspec

from atune.processes.messages import ServiceReady
from atune.stages.accelerators import nvrtc
from atune.stages.accelerators.cicc import CiccError, Server, includes_for
from atune.stages.accelerators.nvrtc import NvrtcError
from atune.stages.compile.device_source import Flavour, flags_config, flavour_of, for_nvcc, guess, parts
from atune.stages.compile.lowering import Blob
from atune.stages.session.session import visible_gpus


class _State:
    server: Server | None = None
    why_not_cicc = ""


_state = _State()


def header(payload: bytes) -> bytes:
    """Entry point: msgpack of (an arch, the compiler asked for) → `ServiceReady`: parse what kernels mostly include.

    That needs to know no kernel. Without an arch it is that of this machine's first GPU.
    """
    arch, asked = msgspec.msgpack.decode(payload, type=tuple[str, str])
    try:
        flavour = Flavour(arch or _arch_of_this_machine())
        ready = _parse(flavour, asked, includes_for(flavour.arch), guess(flavour.arch))
    except NvrtcError as error:
        ready = ServiceReady(False, str(error)[:500])
    return msgspec.msgpack.encode(ready)


def listen(payload: bytes) -> bytes:
    """Entry point: msgpack of (a lowered candidate's blob, arch, folder, compiler asked for) → `ServiceReady`.

    Afterwards `folder`, the run's, has what workers connect to; further runs may ask for the same. Where what is parsed
    does not do for the candidate, what its source includes is parsed.
    """
    data, arch, folder, asked = msgspec.msgpack.decode(payload, type=tuple[bytes, str, str, str])
    blob = msgspec.msgpack.decode(data, type=Blob)
    flavour = flavour_of(arch, blob.pass_configs)
    try:
        if reason := for_nvcc({**blob.pass_configs, **flags_config(blob.flags)}):
            raise NvrtcError(reason)
        server, ready = _state.server, ServiceReady(True)
        if server is not None and not (server.fits(flavour, blob.source) and server.up_to_date()):
            _state.server = None  # so that its end is expected
            server.kill()
            shutil.rmtree(server.folder, ignore_errors=True)
            server = None
        if server is None and not nvrtc.has_header(flavour):
            before = blob.source.partition('extern "C"')[0]
            known_to_nvrtc = re.findall(r"^#include (<tl_templates/[^>\n]*>)\n", before, re.MULTILINE)
            try:
                first, wanted, _ = parts(blob.source)
            except ValueError:
                first, wanted = "", ()
            ready = _parse(flavour, asked, wanted, known_to_nvrtc, first)
        if _state.server is not None:
            _state.server.link(folder)
            return msgspec.msgpack.encode(msgspec.structs.replace(ready, compiler="cicc"))
        nvrtc.listen(folder)
    except NvrtcError as error:
        return msgspec.msgpack.encode(ServiceReady(False, str(error)[:500]))
    return msgspec.msgpack.encode(msgspec.structs.replace(ready, compiler="nvrtc", reason=_state.why_not_cicc))


def serve(_: bytes) -> bytes:
    """Entry point: serve by NVRTC until this process is killed. cicc's server serves by itself."""
    nvrtc.serve()


def _end_with(server: Server) -> None:
    """Wait for cicc's end, and end this process, which is of no use without it."""
    how = server.wait()
    if _state.server is server:
        print(f"cicc ended: {how}", file=sys.stderr, flush=True)
        os._exit(1)


def _parse(
    flavour: Flavour, asked: str, includes: Sequence[str], known_to_nvrtc: Sequence[str], first: str = ""
) -> ServiceReady:
    """Parse `first` and `includes`, or for NVRTC `known_to_nvrtc`. Raises `NvrtcError` where no compiler is there."""
    if asked != "nvrtc":
        started = time.perf_counter()
        try:
            _state.server = _server(flavour, includes, first)
        except (CiccError, OSError) as error:
            if asked == "cicc":
                raise NvrtcError(str(error)) from None
            _state.why_not_cicc = f"not cicc, because {str(error)[:300]}"
        else:
            threading.Thread(target=_end_with, args=(_state.server,), daemon=True).start()
            return ServiceReady(True, "", round(time.perf_counter() - started, 3))
    return ServiceReady(True, "", nvrtc.make(flavour, known_to_nvrtc))


def _server(flavour: Flavour, includes: Sequence[str], first: str) -> Server:
    """Return a server for `includes` and for what other kernels mostly include, where both can be had together."""
    both = dict.fromkeys((*includes, *includes_for(flavour.arch)))
    try:
        return Server(flavour, tuple(both), tempfile.mkdtemp(prefix="cicc-"), first)
    except CiccError:
        if not includes or len(both) == len(includes):
            raise
        return Server(flavour, includes, tempfile.mkdtemp(prefix="cicc-"), first)


def _arch_of_this_machine() -> str:
    gpus = visible_gpus()
    if not gpus:
        raise NvrtcError("there is no GPU")
    return gpus[0].arch
