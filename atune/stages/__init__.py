"""What runs inside a worker's process: elaboration, lowering, code, loading, the check of outputs, and timing.

They import `model`, `workload`, `bundle` and the messages, stores and locks of `workers`; nothing here decides what a
run does next. Only they and `compat` import tilelang, torch or CUDA, and `tilelang` names all that they take from it.
The engine names their entry points by import path; each takes bytes and returns bytes.
"""
