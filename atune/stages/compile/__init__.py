"""The compile worker's stages: facts of an elaborated kernel, lowering, code, libraries, keys of the artifact store.

It imports `model`, `workers.system`, and of `stages` what a session, a kernel function and tilelang are. nvcc's
programs with parsed headers are in `stages.cicc`; who compiles what, and when, is the engine's.
"""
