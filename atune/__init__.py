"""Autotuning for TileLang kernels, as an asyncio event-driven engine."""

from atune.space import Space
from atune.workload import Workload
from atune.tuner import tune
