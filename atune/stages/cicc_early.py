"""Imported by the compile service's fork server: parse the headers for this machine's GPU, for all workers and runs."""

import os

import msgspec

from atune.stages.cicc_server import header
from atune.workers.resources import COMPILE_NICE

os.nice(COMPILE_NICE)
header(msgspec.msgpack.encode(""))  # if it fails, the worker's own call says why
