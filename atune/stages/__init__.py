"""The work inside a worker's process: elaborate, lower, generate code, load, check outputs and time calls.

The modules do one job at a time; the engine decides what a run does next. They import `model`, `workload`, `bundle`,
and the messages, stores and locks of `workers`. Only they and `compat` import tilelang or CUDA, and the module
`tilelang` lists the names that they use. Entry points, which the engine names by path, take and return bytes.
"""
