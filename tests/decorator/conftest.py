"""Kernels under the decorator, with small tunings and a result cache of the test's own; and a stand-in engine."""

from stand_in_engine import engine as engine
from stand_in_engine import tuned as tuned
