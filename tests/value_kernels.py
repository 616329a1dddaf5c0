"""Kernels whose code depends on what a value is, and not on its plain form: each factor is another program."""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Any, NamedTuple

import tilelang.language as T

import atune


class Order(enum.IntEnum):
    FORWARD = 0
    BACKWARD = 1


class Tile(NamedTuple):
    rows: int
    cols: int


EIGHT = Tile(8, 8)


def scaled(N: int, factor: float) -> Any:
    @T.prim_func
    def main(A: T.Tensor((N,), "float32"), B: T.Tensor((N,), "float32")):
        with T.Kernel(T.ceildiv(N, 64), threads=1) as bx:
            for i in T.serial(64):
                B[bx * 64 + i] = A[bx * 64 + i] * T.float32(factor)

    return main


def by_order(N: int, order: Order = Order.FORWARD) -> Any:
    return scaled(N, 3 if order is Order.BACKWARD else 2)


def by_tile(N: int, tile: Tile = EIGHT) -> Any:
    return scaled(N, tile.rows + 10 * tile.cols)


def by_list(N: int, tile: Any = (8, 8)) -> Any:
    tile.append(0)  # a list of its own for each call
    return scaled(N, tile[0] if len(tile) == 3 else -1)


def by_dtype(N: int, dtype: Any = T.float32) -> Any:
    return scaled(N, 2 if dtype is not str and dtype(1) is not None and dtype == T.float32 else 3)


def by_zero(N: int, value: float = 0.0) -> Any:
    return scaled(N, value)


def by_argument(N: int, order: Order = Order.FORWARD, block: int = 64, limit: float = float("inf")) -> Any:
    return scaled(N, (3 if order is Order.BACKWARD else 2) + (limit < block))


FACTORS: dict[str, tuple[Callable[..., Any], str, list[Any], list[float]]] = {
    "enum": (by_order, "order", [*Order], [2, 3]),
    "named tuple": (by_tile, "tile", [Tile(1, 2), Tile(2, 1)], [21, 12]),
    "list": (by_list, "tile", [[4, 8], [8, 4]], [4, 8]),
    "dtype": (by_dtype, "dtype", [T.float32, T.float64], [2, 3]),
    "zero": (by_zero, "value", [0.0, -0.0], [0.0, -0.0]),
}
"""By kind: a kernel, its axis, the axis' values, and the factor that each makes."""

ORDERS = atune.Workload(by_order, atune.Space(order=[*Order]), arguments={"N": 128})
BACKWARD = atune.Workload(by_order, [{"order": Order.BACKWARD}], arguments={"N": 128})
COMPUTED = atune.Workload(by_order, atune.Space(order=lambda: [Order.BACKWARD]), arguments={"N": 128})
ARGUMENT = atune.Workload(by_argument, [{"block": 64}], arguments={"N": 128, "order": Order.BACKWARD})
