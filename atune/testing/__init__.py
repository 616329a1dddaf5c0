"""Fake compilers, fake devices and a fake clock, with which you can test the engine and programs that use atune.

    machine = FakeMachine(24, Script(latency_ms=lambda config: 1 + config["x"], fails={3: "compile"}))
    result = await atune.tune(machine=machine)
    assert machine.measured["fake-0"] == [0, 1, 2, ...]

A script decides what the fakes do. The fakes start no process, and need neither tilelang nor torch nor CUDA. Time is
virtual, so a run takes only milliseconds. `FakeMachine` implements `atune.engine.interfaces.Machine`, and passes
the same tests as the real machine. This package imports `engine`, `model`, `workload` and `workers`.
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
