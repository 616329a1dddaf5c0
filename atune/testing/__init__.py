"""Scripted fakes for tests of the engine and of programs that use it: compilers, devices and a clock.

    machine = FakeMachine(24, Script(latency_ms=lambda config: 1 + config["x"], fails={3: "compile"}))
    result = await atune.tune(machine=machine)
    assert machine.measured["fake-0"] == [0, 1, 2, ...]

This package imports `engine`, `model`, `workload`, and `workers`, which has the real machine. The fakes start no
process and need no tilelang, torch or CUDA. Time is virtual, so a run takes milliseconds with any script. `FakeMachine`
implements `atune.engine.interfaces.Machine`, and the contract suite tests both machines.
"""

from atune.testing.fake_machine import FakeClock, FakeCompileWorker, FakeDeviceWorker, FakeMachine
from atune.testing.script import Script, Stage

__all__ = [
    "FakeClock",
    "FakeCompileWorker",
    "FakeDeviceWorker",
    "FakeMachine",
    "Script",
    "Stage",
]
