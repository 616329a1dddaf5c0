"""Fakes for tests of the engine and of what is built on it: compilers, devices and a clock, scripted.

    machine = FakeMachine(24, Script(latency_ms=lambda config: 1 + config["x"], fails={3: "compile"}))
    result = await atune.tune(machine=machine)
    assert machine.measured["fake-0"] == [0, 1, 2, ...]

No process is started and no tilelang, torch or CUDA is needed; time is virtual, so that a run takes milliseconds
whatever its script says. `FakeMachine` keeps `atune.engine.interfaces.Machine`, and the contract suite holds it to what
the real ones do.
"""

from atune.testing.clock import FakeClock, InstantClock
from atune.testing.machine import FakeMachine
from atune.testing.script import FATAL, STAGE_OF, Script, Stage
from atune.testing.workers import FakeCompileWorker, FakeDeviceWorker, IdleDeviceWorker, symbol_of

__all__ = [
    "FATAL",
    "STAGE_OF",
    "FakeClock",
    "FakeCompileWorker",
    "FakeDeviceWorker",
    "FakeMachine",
    "IdleDeviceWorker",
    "InstantClock",
    "Script",
    "Stage",
    "symbol_of",
]
