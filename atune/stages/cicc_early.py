"""Parse headers when the compile service's fork server imports this module, so that all the service's processes share
the parsed headers.

The headers are parsed for the architecture that the environment names, or else for the first GPU's architecture.
"""

import os
import tempfile
from contextlib import suppress

from atune.model.folders import SERVER_FOLDER
from atune.stages.cicc_server import CiccError, parse
from atune.stages.cicc_source import Flavour
from atune.stages.gpu import visible_gpus
from atune.workers.resources import COMPILE_NICE
from atune.workers.server import SERVICE_ARCH

tempfile.tempdir = os.environ[SERVER_FOLDER]
if arch := os.environ.get(SERVICE_ARCH) or next((gpu.arch for gpu in visible_gpus()), ""):
    with suppress(CiccError, OSError):  # the first candidate to compile shows the error
        cicc = parse(Flavour(arch)).process.pid
        os.setpriority(os.PRIO_PROCESS, cicc, min(os.getpriority(os.PRIO_PROCESS, 0) + COMPILE_NICE, 19))
tempfile.tempdir = None  # the service's processes have their own
