"""The stages run inside worker processes, and only they and `compat` import tilelang, torch or CUDA.

They import `model`, `workload` and the messages, stores and locks of `workers`; nothing here decides what a run does
next. The engine names their entry points by import path; each takes bytes and returns bytes.
"""
