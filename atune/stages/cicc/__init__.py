"""nvcc with the headers parsed once: the server and its process, the workers' side, and Hopper's instructions.

It imports `model`, `stages.compile`, `stages.session`, `stages.tilelang` and the compiler states of `workers.storage`.
Whether a run uses it, and when its process starts, is in `workers.local`; plain nvcc is in `stages.compile`.
"""
