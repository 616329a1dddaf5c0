"""Pickling in which large parts stay apart: they come back whole, and nothing copies them on the way."""

from __future__ import annotations

import functools
import gc
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy
import pytest
import torch

from atune.workload.fingerprint import fingerprint
from atune.workload.packing import LARGE_BYTES, LazyCallback, Packed, pack, unpack, write
from atune.workload.pickling import load, ship
from atune.workload.workload import Workload

N = LARGE_BYTES


def by_value(packed: Packed, folder: Path) -> Packed:
    return msgspec.msgpack.decode(msgspec.msgpack.encode(packed), type=Packed)


def by_file(packed: Packed, folder: Path) -> Packed:
    return write(packed, str(folder / "packed"))


Way = Callable[[Packed, Path], Packed]
both_ways = pytest.mark.parametrize("way", [by_value, by_file])


def kernel(N: int, block: int = 32) -> None:
    """Stands for a kernel factory where nothing is lowered."""


@both_ways
def test_what_is_large_comes_back_as_it_was(way: Way, tmp_path: Path) -> None:
    text, array = os.urandom(N), numpy.arange(N)
    fixed = array.copy()
    fixed.flags.writeable = False
    tensor = torch.arange(N).to(torch.bfloat16).reshape(2, -1).t()
    parameter = torch.nn.Parameter(torch.ones(N))
    packed = pack(lambda: (text, array, fixed, tensor, parameter))
    assert len(packed.stream) < N + 4096
    found = unpack(way(packed, tmp_path))()
    assert found[0] == text
    assert (found[1] == array).all() and found[1].flags.writeable and not found[2].flags.writeable
    assert torch.equal(found[3], tensor) and found[3].stride() == tensor.stride()
    assert type(found[4]) is torch.nn.Parameter and found[4].requires_grad


@both_ways
@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.uint16], ids=str)
def test_tensors_of_dtypes_that_torch_itself_cannot_send_come_back(dtype: Any, way: Way, tmp_path: Path) -> None:
    large, empty = torch.arange(2 * N).remainder(8).to(dtype), torch.empty(0, dtype=dtype)
    found = unpack(way(pack((large, large[1:9], large[:4].clone(), empty)), tmp_path))
    assert all(one.dtype == dtype for one in found) and len(found[3]) == 0
    assert found[0].tolist() == large.tolist() and found[2].tolist() == [0, 1, 2, 3]
    found[0][1] = 7
    assert found[1].tolist() == [7, 2, 3, 4, 5, 6, 7, 0]  # it shares the memory still


def test_a_lazy_callback_counts_in_a_worker_as_in_the_program() -> None:
    """Or a file that is written beside the script, such as its log, would make the worker's work look edited."""
    factor = numpy.arange(3)
    reference, supply = LazyCallback(lambda x: x * factor), functools.partial(numpy.zeros, LazyCallback(abs))
    work = Workload(kernel, [{"block": 32}], arguments={"N": 1}, reference=reference, inputs=supply)
    there = load(ship(work))
    again = load(ship(there))
    assert fingerprint(work) == fingerprint(there) == fingerprint(again)
    other = Workload(kernel, [{"block": 32}], arguments={"N": 1}, reference=LazyCallback(abs), inputs=supply)
    assert fingerprint(load(ship(other))) != fingerprint(work)


@both_ways
def test_what_is_written_to_a_copy_is_seen_by_it_alone(way: Way, tmp_path: Path) -> None:
    tensor = torch.zeros(N)
    packed = way(pack((tensor, tensor[8:16])), tmp_path)
    (one, part), (other, _) = unpack(packed), unpack(packed)
    one[8] = 1
    assert part[0] == 1, "tensors of one memory go on sharing it"
    assert tensor[8] == 0 and other[8] == 0


def test_packing_copies_nothing_that_is_large() -> None:
    array, tensor = numpy.zeros(N), torch.zeros(N)
    first, second = pack((array, tensor)).buffers
    assert numpy.shares_memory(numpy.frombuffer(first), array)
    assert numpy.shares_memory(numpy.frombuffer(second), tensor.numpy())


@both_ways
def test_a_lazy_callback_keeps_its_large_closure_apart(way: Way, tmp_path: Path) -> None:
    tensor = torch.full((N,), 3.0)
    packed = pack(LazyCallback(lambda x: tensor[0] * x))
    assert len(packed.stream) < 4096 and len(packed.buffers) == 1
    opened = unpack(way(packed, tmp_path))
    assert opened(2) == 6
    (tmp_path / "again").mkdir()
    assert unpack(way(pack(opened), tmp_path / "again"))(2) == 6
    assert pickle.loads(pickle.dumps(opened, protocol=5))(2) == 6


def test_what_is_packed_can_be_collected() -> None:
    """Views of views cannot, where they are part of a cycle: Python ends."""
    circle: list[Any] = [pack(LazyCallback(numpy.zeros(N).sum)), pack(View(memoryview(bytearray(N))))]
    circle.append(circle)
    del circle
    gc.collect()


class View:
    """Something whose pickle has a view of memory."""

    def __init__(self, view: Any) -> None:
        self.view = view

    def __reduce__(self) -> tuple[Any, ...]:
        return View, (pickle.PickleBuffer(self.view),)


def test_large_byte_strings_of_a_closure_are_told_apart() -> None:
    def of(text: bytes) -> str:
        return fingerprint(Workload(kernel, [{"block": 1}], arguments={"N": 8}, reference=lambda A: text))

    assert of(bytes(N)) == of(bytes(N)) != of(bytes(N - 1) + b"x")
