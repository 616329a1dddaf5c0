"""Entry point of a worker that looks at this machine: target, devices, and the accelerators that can be used."""

from __future__ import annotations

import msgspec

from atune.model.device import Target
from atune.model.settings import CompileSettings
from atune.stages.accelerators import registry
from atune.stages.session import session


def discover(payload: bytes) -> bytes:
    """Resolve a target: msgpack of (target, device names, mixed, `CompileSettings`) → `Discovery`.

    Raises `TargetError` if the target's devices or compilers are missing.
    """
    asked = tuple[str | Target, tuple[str, ...], bool, CompileSettings]
    text, wanted, mixed, settings = msgspec.msgpack.decode(payload, type=asked)
    found = session.discover(text, wanted, mixed)
    kind, arch = found.target.kind, found.target.arch or ""
    host = registry.this_host(kind, arch, verbose=settings.verbose)
    active, unused = registry.chosen(settings.acceleration, host)
    return msgspec.msgpack.encode(msgspec.structs.replace(found, accelerators=active, unused=unused))
