"""What a candidate of a shared library computes: which member was really called?"""

from __future__ import annotations

import msgspec

from atune.model.artifact import Artifact, Roles
from atune.workers.device_worker import LocalDeviceWorker


async def outputs_of(device: LocalDeviceWorker, artifact: Artifact) -> list[bytes]:
    """Run `artifact` once in the device's process, and return its outputs' bytes, one a parameter."""
    assert device._worker is not None
    device._used = True
    reply = await device._worker.call("kernel_outputs:run_once", msgspec.msgpack.encode(artifact))
    return msgspec.msgpack.decode(reply, type=list[bytes])


def run_once(payload: bytes) -> bytes:
    """Entry point: run an `Artifact` once on poisoned outputs and return them as raw bytes."""
    import torch

    from atune.stages import benchmark

    artifact = msgspec.msgpack.decode(payload, type=Artifact)
    arguments = benchmark.fit_arguments(artifact.params, Roles(outputs=(1,)))
    arguments.fill_outputs(0xFF)
    benchmark.load(artifact)(*arguments.values)
    benchmark.device.timer.synchronise()
    return msgspec.msgpack.encode(
        [bytes(o.cpu().contiguous().view(torch.uint8).numpy().tobytes()) for o in arguments.outputs]
    )
