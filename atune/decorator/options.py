"""Typed options of `@atune.autotune`, for calling it with the kernel and for using it as a decorator."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Required, TypedDict

from atune.api.cached_tune import Concurrent
from atune.decorator.call import OnMiss
from atune.journal.events import Event
from atune.reporting.log import EventLog

PathLike = str | os.PathLike[str]


class AutotuneOptions(TypedDict, total=False):
    """Options that `atune.autotune` documents."""

    space: Required[Any]
    where: Callable[..., Any] | Sequence[Callable[..., Any]]
    key: Any
    do_not_specialize: str | Sequence[str]
    hints: Mapping[str, Any] | None
    tuning: str | Mapping[str, Any] | None
    inputs: Any
    reference: Callable[..., Any] | None
    setup: Callable[..., Any] | None
    check: Callable[..., Any] | None
    tune_on: Callable[..., Any] | None
    symbols: Mapping[str, int] | None
    out_idx: int | Sequence[int] | None
    rtol: float | None
    atol: float | None
    max_mismatched_ratio: float
    supply: Any
    restore: Sequence[int]
    zero: Sequence[int]
    flops: float | None
    bytes: float | None
    default: Mapping[str, Any] | None
    target: str | None
    devices: str | Sequence[str | int]
    cache: bool | PathLike
    concurrent: Concurrent
    on_miss: OnMiss
    shipped: PathLike | Sequence[PathLike]
    journal: PathLike | None
    report: PathLike | None
    progress: bool
    on_event: Callable[[Event], None] | None
    log: EventLog | None
    name: str | None
