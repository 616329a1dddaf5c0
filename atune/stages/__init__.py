"""The work inside a worker's process: elaborate, lower, generate code, load, check outputs and time calls.

A worker does one job at a time, and the engine decides which job is next. This package imports `model`, `workload`,
`bundle`, and only the messages, stores and locks of `workers`. Only this package and `compat` import tilelang or CUDA.
The module `tilelang` lists tilelang's names that atune uses. The engine calls an entry point by its path. An entry
point takes bytes and returns bytes.
"""
