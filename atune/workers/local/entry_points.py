"""Import paths of the functions that a run's processes call, and the modules that their servers import early."""

from __future__ import annotations

PRELOAD = (
    "torch", "tilelang",
    "tilelang.language", "tilelang.engine.lower", "tilelang.backend.module",
    "atune.stages.compile_jobs", "atune.stages.measure.benchmark",
)  # fmt: skip
"""Modules that the fork server imports once for all workers."""

BEGIN = "atune.stages.session.session:begin"
LOAD = "atune.stages.session.session:load_workload"
LOAD_SPACE = "atune.stages.session.session:load_space"
LIST_SPACE = "atune.stages.session.session:list_space"
NEAREST = "atune.stages.session.session:nearest"
LOCATE = "atune.stages.session.session:locate_kernel"
SURVEY_SPACE = "atune.stages.session.session:survey_space"
DISCOVER = "atune.stages.accelerators.registry:discover"

COMPILE = "atune.stages.compile_jobs:"
"""Prefix of a compile worker's functions, which are named after jobs, such as ``lower``."""
EXPLAIN = "atune.stages.compile_jobs:explain"

MEASURE = "atune.stages.measure.benchmark:"
"""Prefix of a device process's functions, which are named after jobs, such as ``prepare``."""
NEIGHBOURS = "atune.stages.measure.telemetry:neighbours"

SERVICE_PRELOAD = ("atune.stages.accelerators.service",)
SERVICE_HEADER = "atune.stages.accelerators.service:header"
SERVICE_LISTEN = "atune.stages.accelerators.service:listen"

SURVEY = "atune.stages.accelerators.registry:survey"
"""For `atune doctor`, which calls this and the next in a process of its own instead of a worker."""
VISIBLE_GPUS = "atune.stages.session.devices:visible_gpus"
